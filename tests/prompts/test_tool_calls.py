"""Tool calls of the history, and the order of their results."""

from __future__ import annotations

import re
from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.prompts.base import Conversation
from server.prompts.kimi_k3 import segments_of
from server.prompts.segments import Segment


def text_of(segments: list[Segment]) -> str:
    """The segments as one text."""
    return "".join(segment.text for segment in segments)


def call(name: str, arguments: Any = "", call_id: str | None = None) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls_of(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(call_id: str | None, content: str, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content} | fields


def text(*messages: dict[str, Any]) -> str:
    return text_of(segments_of(Conversation(messages=messages, thinking=False)))


def results(*messages: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Tool, index and content of the results in the prompt."""
    pattern = r'<\|open\|>message role="tool" tool="([^"]*)" index="([^"]*)"<\|sep\|>(.*?)<\|close\|>message'
    return re.findall(pattern, text(*messages))


def arguments_as_rendered(arguments: Any) -> str:
    whole = text(calls_of(call("f", arguments)))
    return whole.partition('<|open|>call tool="f" index="1"<|sep|>')[2].partition("<|close|>call<|sep|>")[0]


def argument(key: str, kind: str, value: str) -> str:
    return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'


@pytest.mark.parametrize(
    ("json_text", "kind", "value"),
    [
        ('"a \\"b\\" & <|close|>\\n"', "string", 'a "b" & <|close|>\n'),
        ('""', "string", ""),
        ("3", "number", "3"),
        ("-0", "number", "0"),
        ("3.0", "number", "3.0"),
        ("1e5", "number", "100000.0"),
        ("1e-7", "number", "1e-07"),
        ("123456789012345678901234567890", "number", "123456789012345678901234567890"),
        ("0.1", "number", "0.1"),
        ("true", "boolean", "true"),
        ("null", "null", "null"),
        ("[]", "array", "[]"),
        ('[1,"ä",{"b":null}]', "array", '[1, "ä", {"b": null}]'),
        ('{"z":1,"a":{"y":2.50}}', "object", '{"z": 1, "a": {"y": 2.5}}'),
        ('"\\ud83d\\ude00"', "string", "😀"),
    ],
)
def test_a_value_is_typed(json_text: str, kind: str, value: str) -> None:
    assert argument("k", kind, value) == arguments_as_rendered(f'{{"k": {json_text}}}')


def test_arguments_keep_their_order_and_keys_are_escaped() -> None:
    expected = argument("z", "number", "1") + argument("a&amp;&quot;b", "string", "x")
    assert expected == arguments_as_rendered('{"z": 1, "a&\\"b": "x"}')


@pytest.mark.parametrize("arguments", ["", " \n", "{}", None, {}])
def test_no_arguments(arguments: Any) -> None:
    assert not arguments_as_rendered(arguments)


def test_arguments_may_be_an_object() -> None:
    assert argument("k", "number", "1") == arguments_as_rendered({"k": 1})


@pytest.mark.parametrize(
    "arguments",
    [
        '{"k": ',
        "{k: 1}",
        "<|close|>call<|sep|>"[:9],
        '{"k": NaN}',
        '{"k": [-Infinity]}',
        '{"k": 1e999}',
        f'{{"k": {"9" * 5000}}}',
        "[" * 100_000,
        '{"a": 1} {"b": 2}',
    ],
)
def test_what_is_not_json_is_shown_as_it_is(arguments: str) -> None:
    assert f'<|open|>json type="object"<|sep|>{arguments}<|close|>json<|sep|>' == arguments_as_rendered(arguments)


@pytest.mark.parametrize("arguments", ["[]", "null", "1", '"{}"', "true", [1], 3])
def test_json_that_is_no_object_is_refused_by_its_path(arguments: Any) -> None:
    messages = ({"role": "user", "content": "x"}, calls_of(call("g"), call("f", arguments)))
    with pytest.raises(InvalidRequestError, match="JSON object") as caught:
        text(*messages)
    assert "messages[1].tool_calls[1].function.arguments" == caught.value.param


def test_calls_are_numbered_and_names_escaped() -> None:
    whole = text(calls_of(call('a"b'), call("c")))
    assert re.findall(r'call tool="([^"]*)" index="(\d+)"', whole) == [("a&quot;b", "1"), ("c", "2")]
    assert 1 == whole.count("<|open|>tools<|sep|>") == whole.count("<|close|>tools<|sep|>")


@pytest.mark.parametrize("tool_calls", [None, []])
def test_no_calls_no_tools_channel(tool_calls: Any) -> None:
    assert "tools" not in text({"role": "assistant", "content": "x", "tool_calls": tool_calls})


CALLS = calls_of(call("f", call_id="a"), call("g", call_id="b"), call("f", call_id="c"))


def test_results_come_in_the_order_of_the_calls() -> None:
    expected = [("f", "1", "A"), ("g", "2", "B"), ("f", "3", "C")]
    assert expected == results(CALLS, result("c", "C"), result("a", "A"), result("b", "B"))


def test_the_name_of_the_call_beats_the_name_of_the_result() -> None:
    assert [("g", "1", "B")] == results(CALLS, result("b", "B", name="other"))


def test_results_are_numbered_on_through_one_turn() -> None:
    between = {"role": "user", "content": "wait"}
    assert [("f", "1", "A"), ("g", "2", "B")] == results(CALLS, result("a", "A"), between, result("b", "B"))


def test_each_assistant_message_counts_anew() -> None:
    expected = [("f", "1", "A"), ("h", "1", "H")]
    assert expected == results(CALLS, result("a", "A"), calls_of(call("h", call_id="a")), result("a", "H"))


def test_a_repeated_id_is_the_first_calls() -> None:
    twice = calls_of(call("f", call_id="a"), call("g", call_id="a"))
    assert [("f", "1", "1"), ("f", "2", "2")] == results(twice, result("a", "1"), result("a", "2"))


def test_an_unknown_id_leaves_the_run_as_sent() -> None:
    expected = [("g", "1", "B"), ("g", "2", "?"), ("f", "3", "A")]
    assert expected == results(CALLS, result("b", "B"), result("x", "?"), result("a", "A"))


def test_an_unknown_id_with_a_name_needs_no_place() -> None:
    assert [("h", "1", "?")] == results({"role": "user", "content": "x"}, result("x", "?", name="h"))


def test_an_id_may_be_missing() -> None:
    assert [("f", "1", "A"), ("g", "2", "B")] == results(CALLS, result(None, "A"), result(None, "B"))
    without_ids = calls_of(call("f"), call("g"))
    assert [("f", "1", "A"), ("g", "2", "B")] == results(without_ids, result(None, "A"), result("None", "B"))


def test_name_and_place_may_stand_for_an_id() -> None:
    assert [("f", "1", "A"), ("g", "2", "B")] == results(CALLS, result("g:1", "B"), result("f:0", "A"))


def test_a_real_id_beats_one_made_of_name_and_place() -> None:
    confusing = calls_of(call("f", call_id="f:1"), call("f", call_id="z"))
    assert [("f", "1", "first"), ("f", "2", "second")] == results(confusing, result("z", "second"), result("f:1", "first"))


@pytest.mark.parametrize("history", [(), (calls_of(call("f", call_id="a")), result("a", "A"))])
def test_a_result_without_a_call_is_refused_by_its_path(history: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(InvalidRequestError, match="`x` is no tool call") as caught:
        text(*history, result("x", "?"))
    assert f"messages[{len(history)}].tool_call_id" == caught.value.param


def test_an_error_names_the_place_in_the_request_not_in_the_prompt() -> None:
    content = [{"type": "image_url", "image_url": {}}]
    with pytest.raises(InvalidRequestError) as caught:
        text(CALLS, result("b", "B") | {"content": content}, result("a", "A"))
    assert "messages[1].content[0]" == caught.value.param
