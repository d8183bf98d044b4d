"""What messages of each role may and must have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.protocol.chat import parse

USER = {"role": "user", "content": "hi"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}


def read(*messages: Any) -> list[Any]:
    return list(parse(json.dumps({"model": "m", "messages": messages}).encode()).messages)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "system", "content": "x"},
        {"role": "system", "content": [{"type": "text", "text": "x"}]},
        {"role": "system", "content": None},
        {"role": "system", "content": "x", "tools": []},
        {"role": "system", "content": "", "tools": [TOOL]},
        {"role": "system", "content": None, "tools": [TOOL]},
        {"role": "developer", "content": "x"},
        {"role": "developer", "tools": [TOOL]},
        {"role": "user", "content": ""},
        {"role": "user", "content": " \n"},
        {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "x"}], "name": "Ada"},
        {"role": "assistant"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "content": "x", "tool_calls": []},
        {"role": "assistant", "content": "x", "tool_calls": None},
        {"role": "assistant", "content": [{"type": "text", "text": "x"}], "reasoning_content": "r", "reasoning": None},
        {"role": "assistant", "content": "x", "partial": True},
        {"role": "user", "content": "x", "partial": True},
        {"role": "user", "content": [{"type": "image_url", "image_url": "https://h/a.png"}]},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}}, {"type": "text", "text": "?"}],
        },
        {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "x", "detail": None}}]},
        {"role": "tool", "content": [{"type": "image_url", "image_url": {"url": "x"}}], "tool_call_id": "a"},
        {"role": "tool", "content": "x", "tool_call_id": "a"},
        {"role": "tool", "content": None, "tool_call_id": "a"},
        {"role": "tool", "content": [{"type": "text", "text": "x"}], "tool_call_id": "a", "name": "f"},
    ],
)
def test_forms_that_are_taken_stay_as_they_are(message: dict[str, Any]) -> None:
    assert [USER, message] == read(USER, message)


@pytest.mark.parametrize(
    ("message", "where", "words"),
    [
        ({"role": "boss", "content": "x"}, "role", "`system`, `developer`, `user`, `assistant` and `tool`"),
        ({"role": "user"}, "content", "missing"),
        ({"role": "user", "content": None}, "content", "missing"),
        ({"role": "user", "content": {"type": "text", "text": "x"}}, "content", "expected"),
        ({"role": "user", "content": ["x"]}, "content[0]", "expected"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "content[0].text", "expected"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "content[0].image_url", "missing"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": None}]}, "content[0].image_url", "missing"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "content[0].image_url.url", "missing"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": 7}]}, "content[0].image_url", "expected"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": ["x"]}}]},
            "content[0].image_url.url",
            "expected",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x", "detail": "huge"}}]},
            "content[0].image_url.detail",
            "huge",
        ),
        ({"role": "user", "content": [{"type": "video_url", "video_url": {"url": "x"}}]}, "content[0]", "`video_url`"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, "content[0]", "`image_url`"),
        ({"role": "user", "content": "x", "tools": [TOOL]}, "tools", "in a system message"),
        ({"role": "assistant", "content": "x", "tools": [TOOL]}, "tools", "in a system message"),
        ({"role": "tool", "content": "x", "tool_call_id": "a", "tools": []}, "tools", "in a system message"),
        ({"role": "system", "content": "x", "tools": [TOOL]}, "tools", "two system messages"),
        ({"role": "system", "tools": {}}, "tools", "expected"),
        ({"role": "system", "tools": [TOOL, TOOL]}, "tools[1].function.name", "names must differ"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "tool_calls", "only the assistant"),
        ({"role": "tool", "content": "x"}, "tool_call_id", "missing"),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, "tool_call_id", "missing"),
        ({"role": "tool", "content": "x", "tool_call_id": 3}, "tool_call_id", "expected"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "tool_calls[0].function", "missing"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "tool_calls[0].function.name", "missing"),
        ({"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}, "tool_calls[0].type", "must be `function`"),
        ({"role": "assistant", "tool_calls": {"0": CALL}}, "tool_calls", "expected"),
        ({"role": "assistant", "content": "x", "partial": "yes"}, "partial", "expected"),
        ({"role": "assistant", "content": "x", "reasoning_content": ["r"]}, "reasoning_content", "expected"),
    ],
)
def test_forms_that_are_refused_are_named(message: dict[str, Any], where: str, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(USER, message)

    assert f"messages[1].{where}" == caught.value.param
    assert words in caught.value.message
    assert "`" in caught.value.message


def test_members_that_nobody_knows_are_dropped() -> None:
    message = {"role": "assistant", "content": "x"}

    assert [USER, message] == read(USER, {**message, "refusal": None, "audio": None, "annotations": []})
