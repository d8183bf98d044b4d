"""What a chat request may and may not be, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.protocol.chat import parse
from server.protocol.decoding import unknown_fields
from server.protocol.reasoning import reasoning_of
from server.protocol.sizes import MAX_JSON_BYTES

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
MANY_TOOLS = [{"type": "function", "function": {"name": f"f{number}"}} for number in range(1025)]
FRAME = len(b'{"type":"function","function":{"name":"g"},"x":""}')
LARGE_TOOLS = [{"type": "function", "function": {"name": name}, "x": "a" * (MAX_JSON_BYTES - FRAME)} for name in "gh"]
LARGE_CALL = {"function": {"name": "f", "arguments": '"' + "a" * MAX_JSON_BYTES}}
LARGE_OBJECT = {"function": {"name": "f", "arguments": {"a": [10] * (MAX_JSON_BYTES // 3 + 1)}}}
LARGE_FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["a" * MAX_JSON_BYTES]}}}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def error_of(data: bytes) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        parse(data)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 3}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "boss", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, "messages[0].content[0].text"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [{**USER, "tools": [TOOL]}]}, "messages[0].tools"),
        ({"messages": [{"role": "system", "tools": [TOOL, TOOL]}]}, "messages[0].tools[1].function.name"),
        ({"messages": [{"role": "system", "tools": [TOOL], "content": "Be brief."}]}, "messages[0].tools"),
        ({"messages": [{"role": "developer", "tools": [TOOL], "content": [{"type": "text", "text": "x"}]}]}, "messages[0].tools"),
        ({"messages": [{"role": "system", "tools": [TOOL]}], "tools": [TOOL]}, "messages[0].tools[0].function.name"),
        ({"messages": [{"role": "system", "tools": [TOOL]}] * 2}, "messages[1].tools[0].function.name"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "messages[0].tool_calls[0].function.name"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 10**30}, "seed"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": "a" * 1025}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ["a" * 1000, "b" * 1000, "c" * 49]}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": MANY_TOOLS}, "tools"),
        ({"tools": MANY_TOOLS[:1024], "messages": [{"role": "system", "tools": [TOOL]}]}, "messages[0].tools"),
        ({"tools": [{**TOOL, "x": "a" * MAX_JSON_BYTES}]}, "tools[0]"),
        ({"tools": LARGE_TOOLS, "messages": [USER, {"role": "system", "tools": [TOOL]}]}, "messages[1].tools"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [LARGE_CALL]}]}, "messages[1].tool_calls[0].function.arguments"),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [LARGE_OBJECT]}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        ({"response_format": LARGE_FORMAT}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "must"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]}, "tool_choice.function.name"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format.json_schema.name"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format.json_schema.schema"),
        ({"cache_salt": "mine"}, "cache_salt"),
        ({"cache_salt": None}, "cache_salt"),
        ({"priority": -5}, "priority"),
        ({"kv_transfer_params": {}}, "kv_transfer_params"),
        ({"functions": []}, "functions"),
    ],
)
def test_mistakes_name_their_field(fields: dict[str, Any], param: str) -> None:
    error = error_of(body(**fields))

    assert error.param == param
    assert "`" in error.message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no body"),
        (b"  \n", "no body"),
        (b"hello", "not JSON"),
        (b'{"model": "m"', "not JSON"),
        (b"[1]", "expected `object`"),
        (b"null", "expected `object`"),
        (body()[:-1] + b', "temperature": NaN}', "`NaN` at byte"),
        (body()[:-1] + b', "temperature": -Infinity}', "`-Infinity` at byte"),
        (body()[:-1] + b', "user": "\\ud800"}', "half of a surrogate pair"),
        (body()[:-1] + b', "user": "\\udc00 x"}', "half of a surrogate pair"),
        (body()[:-1] + b', "user": "\xff"}', "not JSON"),
        (b'{"model": "m", "metadata": {"a": ' + b"[" * 10_000, "too deeply"),
        (b'{"model": "m", "x": ' + b"[" * 10_000, "too deeply"),
        (b'{"model": "m", "x": [' + b"[]," * 2_000_000 + b"1]}", "times `[`"),
        (b"[" * 20_000_000, "times `[`"),
        (b'{"model": "m", "x": [' + b"1," * 2_000_000 + b"1]}", "times `,`"),
        (body()[:-1] + b', "user": "\\ud800 and more text behind it, enough of it"}', "half of a surrogate pair"),
        (body()[:-1] + b', "user": "NaN" "x"}', "not JSON"),
    ],
)
def test_what_is_not_a_request_is_told_why(data: bytes, words: str) -> None:
    assert words in error_of(data).message


@pytest.mark.parametrize("text", ["[1] ", "a,", '{"a": 1, ', "\\", '"'])
def test_brackets_and_commas_in_text_are_text(text: str) -> None:
    content = text * 400_000

    assert parse(body(messages=[{"role": "user", "content": content}])).messages[0]["content"] == content


def test_missing_fields_are_named() -> None:
    assert error_of(b"{}").param == "model"
    assert error_of(b'{"model": "m"}').param == "messages"


def test_a_surrogate_pair_and_an_escaped_backslash_are_text() -> None:
    request = parse(body()[:-1] + b', "user": "\\ud83d\\ude80 \\\\ud800"}')

    assert request.user == "\U0001f680 \\ud800"


def test_unknown_fields_are_ignored_and_listed() -> None:
    data = body(yyy="auto", zzz=1, temperature=0.5)

    assert parse(data).temperature == 0.5
    assert unknown_fields(data, parse(data).__struct_fields__) == ["yyy", "zzz"]


def test_tools_and_their_unknown_members_stay_as_sent() -> None:
    tool = {
        "type": "function",
        "x-note": [1, {"b": 2.50}],
        "function": {"name": "f", "strict": True, "parameters": {"$defs": {}}},
    }

    assert parse(body(tools=[tool])).tools == [tool]


def test_arguments_may_be_an_object() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"city": "Zürich", "n": 2}}}
    request = parse(body(messages=[USER, {"role": "assistant", "tool_calls": [call]}]))

    assert request.messages[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Zürich", "n": 2}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (True, "max")),
        ({"reasoning_effort": "low"}, (True, "low")),
        ({"reasoning_effort": "minimal"}, (True, "low")),
        ({"reasoning_effort": "medium"}, (True, "high")),
        ({"reasoning_effort": "xhigh"}, (True, "max")),
        ({"reasoning_effort": "none"}, (False, "max")),
        ({"thinking": {"type": "disabled"}}, (False, "max")),
        ({"thinking": {"type": "enabled", "effort": "high"}, "reasoning_effort": "low"}, (True, "high")),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "low"}, (True, "low")),
        ({"chat_template_kwargs": {"thinking": False}}, (False, "max")),
        ({"chat_template_kwargs": {"enable_thinking": False}}, (False, "max")),
        ({"chat_template_kwargs": {"thinking_effort": "low", "other": 1}}, (True, "low")),
    ],
)
def test_every_way_to_ask_for_reasoning(fields: dict[str, Any], expected: tuple[bool, str]) -> None:
    assert reasoning_of(parse(body(**fields))) == expected


@pytest.mark.parametrize("fields", [{"reasoning_effort": "huge"}, {"chat_template_kwargs": {"thinking_effort": 3}}])
def test_an_unknown_effort_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="must be one of"):
        reasoning_of(parse(body(**fields)))


def test_tools_of_a_system_message_can_be_chosen() -> None:
    system = {"role": "system", "tools": [TOOL], "content": ""}
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        assert parse(body(messages=[system, USER], tool_choice=choice)).tool_choice == choice


def test_tools_may_be_as_large_as_is_said() -> None:
    assert len(parse(body(tools=LARGE_TOOLS)).tools or ()) == 2
    assert len(parse(body(tools=MANY_TOOLS[:1024])).tools or ()) == 1024


LONG = "a" * 100_000


@pytest.mark.parametrize("value", [LONG, [LONG], {LONG: LONG}, 10**4000], ids=["text", "list", "object", "number"])
@pytest.mark.parametrize(
    "fields",
    [
        lambda value: {"tools": [{"type": value}]},
        lambda value: {"tools": [TOOL], "tool_choice": value},
        lambda value: {"tools": [TOOL], "tool_choice": {"type": value}},
        lambda value: {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": value}}},
        lambda value: {"response_format": {"type": value}},
        lambda value: {"messages": [{"role": value}]},
        lambda value: {"messages": [{"role": "user", "content": [{"type": "text", "text": value}, {"type": value, "text": 3}]}]},
        lambda value: {"max_tokens": value, "max_completion_tokens": 1},
        lambda value: {"seed": value},
        lambda value: {"temperature": value},
        lambda value: {"stop": value},
        lambda value: {"logit_bias": {str(value)[:5000]: 1}},
        lambda value: {"logit_bias": {"1": value}},
        lambda value: {"thinking": {"type": value}},
        lambda value: {"reasoning_effort": value},
        lambda value: {"thinking": {"effort": value}},
        lambda value: {"chat_template_kwargs": {"thinking_effort": value}},
    ],
)
def test_an_error_does_not_repeat_what_is_long(fields: Any, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        reasoning_of(parse(body(**fields(value))))

    assert len(caught.value.message) + len(caught.value.param or "") < 400
