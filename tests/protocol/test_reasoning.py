"""The ways to ask for reasoning that are refused, and those that mean the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.protocol.chat import ChatRequest, parse
from server.protocol.reasoning import reasoning_of


def request(**fields: Any) -> ChatRequest:
    return parse(json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode())


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"thinking": {"type": "auto"}}, "thinking.type", "`enabled` or `disabled`"),
        ({"thinking": {"type": True}}, "thinking.type", "`enabled` or `disabled`"),
        ({"thinking": {"keep": "none"}}, "thinking.keep", "send `all`"),
        ({"thinking": {"keep": True}}, "thinking.keep", "expected"),
        ({"thinking": {"effort": "huge"}}, "thinking.effort", "one of `none`"),
        ({"thinking": "enabled"}, "thinking", "expected `object"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "one of `none`"),
        ({"chat_template_kwargs": {"thinking": "yes"}}, "chat_template_kwargs.thinking", "true or false"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking", "true or false"),
        ({"chat_template_kwargs": {"preserve_thinking": "all"}}, "chat_template_kwargs.preserve_thinking", "true or false"),
        ({"chat_template_kwargs": {"thinking_effort": True}}, "chat_template_kwargs.thinking_effort", "one of `none`"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs", "expected"),
    ],
)
def test_what_can_not_be_meant_is_refused(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        request(**fields)

    assert param == caught.value.param
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"thinking": {}}, (True, "max")),
        ({"thinking": {"type": None, "keep": None, "effort": None}}, (True, "max")),
        ({"thinking": {"effort": "low"}}, (True, "low")),
        ({"thinking": {"type": "enabled", "keep": "all", "effort": "high"}}, (True, "high")),
        ({"thinking": {"effort": "none"}}, (False, "max")),
        ({"thinking": {"type": "disabled", "effort": "low"}}, (False, "low")),
        ({"thinking": {"effort": "low"}, "reasoning_effort": "max"}, (True, "low")),
        ({"thinking": {"keep": "all"}, "reasoning_effort": "low"}, (True, "low")),
        ({"reasoning_effort": "high", "chat_template_kwargs": {"thinking_effort": "low"}}, (True, "high")),
        ({"thinking": {"type": "enabled"}, "chat_template_kwargs": {"thinking": False}}, (True, "max")),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "none"}, (True, "max")),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "high"}, (False, "high")),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"thinking": True}}, (False, "max")),
        ({"reasoning_effort": "high", "chat_template_kwargs": {"thinking": False}}, (False, "high")),
        ({"chat_template_kwargs": {"thinking": None, "enable_thinking": False}}, (False, "max")),
        ({"chat_template_kwargs": {"thinking": True, "enable_thinking": False}}, (True, "max")),
        (
            {"chat_template_kwargs": {"thinking": True, "preserve_thinking": True, "thinking_effort": "high", "x": {}}},
            (True, "high"),
        ),
        ({"chat_template_kwargs": None, "thinking": None, "reasoning_effort": None}, (True, "max")),
    ],
)
def test_precedence_and_leave(fields: dict[str, Any], expected: tuple[bool, str]) -> None:
    assert expected == reasoning_of(request(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "disabled"}},
        {"thinking": {"effort": "low"}},
        {"chat_template_kwargs": {"thinking": False}},
        {"chat_template_kwargs": {"thinking_effort": "high"}, "top_k": 5},
        {"reasoning_effort": "low", "temperature": 0.5},
    ],
)
def test_a_pasted_extra_body_is_the_same_as_its_fields(fields: dict[str, Any]) -> None:
    plain, pasted = request(**fields), request(extra_body=fields)

    assert plain == pasted
    assert reasoning_of(plain) == reasoning_of(pasted)


def test_fields_beside_a_pasted_extra_body_win_unless_they_are_null() -> None:
    wanted = request(temperature=0.5, top_p=None, extra_body={"temperature": 0.7, "top_p": 0.9, "extra_body": {"n": 3}})

    assert (0.5, 0.9, None) == (wanted.temperature, wanted.top_p, wanted.n)


@pytest.mark.parametrize(
    ("pasted", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"cache_salt": "x"}, "cache_salt"),
        ({"stop": 3}, "stop"),
        ([], "extra_body"),
        ("x", "extra_body"),
    ],
)
def test_a_pasted_extra_body_is_checked_like_the_rest(pasted: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        request(extra_body=pasted)

    assert param == caught.value.param


def test_an_empty_extra_body_is_nothing() -> None:
    assert request() == request(extra_body=None)
    assert request(temperature=0.5).temperature == request(temperature=0.5, extra_body={}).temperature
