"""What is not a matter of one recorded output: steps, bounds and counts."""

from __future__ import annotations

from typing import Any

import pytest

from server.events import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from server.parsers.kimi_k3_header import MAX_HEADER_BYTES
from server.parsers.kimi_k3_message import MAX_REPEATED_TEXTS
from server.parsers.recovery import Recovery

TEXT = "The quick brown fox: 12 naïve 北京 👨‍👩‍👧\n"
CLOSE_THINK = (["close", "think", "sep"], ["open", "response", "sep"])
CLOSE_RESPONSE = ["close", "response", "sep"]
TOOLS = ["open", "tools", "sep"]


def test_a_step_has_one_delta_of_each_kind(pen: Any) -> None:
    call = (
        ["open", 'call tool="f"', "sep"],
        ["open", 'argument key="k" type="string"', "sep"],
        "v",
        ["close", "argument", "sep"],
    )
    token_ids = pen.write(TEXT, *CLOSE_THINK, TEXT, CLOSE_RESPONSE, TOOLS, *call, ["close", "call", "sep"])
    arguments = ToolCallArguments(0, '{"k": "v"}')
    expected = [ReasoningDelta(TEXT), ContentDelta(TEXT), ToolCallStart(0, "f"), arguments, ToolCallEnd(0)]
    assert expected == pen.parser(thinking=True).feed(token_ids)


def test_text_comes_out_with_the_token_that_completes_it(k3: Any) -> None:
    token_ids = k3.write("plain words of a text")
    parser = k3.parser()
    expected = [[ContentDelta(k3.vocabulary.decode([token_id]))] for token_id in token_ids]
    assert expected == [parser.feed([token_id]) for token_id in token_ids]


def test_a_string_argument_is_not_held_back(k3: Any) -> None:
    parser = k3.parser()
    parser.feed(
        k3.write(CLOSE_RESPONSE, TOOLS, ["open", 'call tool="f"', "sep"], ["open", 'argument key="k" type="string"', "sep"])
    )
    assert all(parser.feed([token_id]) for token_id in k3.write("a large file\n" * 20))


def test_nothing_comes_of_no_tokens(pen: Any) -> None:
    assert [] == pen.parser(thinking=True).feed([])


def test_reasoning_tokens_are_those_of_the_text(pen: Any) -> None:
    parser = pen.parser(thinking=True)
    parser.feed(pen.write(TEXT, *CLOSE_THINK, TEXT, CLOSE_RESPONSE))
    assert len(pen.write(TEXT)) == parser.num_reasoning_tokens


def test_reasoning_tokens_of_a_marker_that_is_none_are_text(byte: Any) -> None:
    parser = byte.parser(thinking=True)
    parser.feed(byte.write("ab", ["open"], "cd!", ["close"]))
    assert 5 == parser.num_reasoning_tokens


@pytest.mark.parametrize("spelled", [False, True])
def test_a_header_is_bounded(byte: Any, spelled: bool) -> None:
    """A quote that is never closed doesn't swallow the answer."""
    parser = byte.parser(thinking=True)
    opener = "<|open|>" if spelled else ["open"]
    events = parser.feed(byte.write("x", *CLOSE_THINK[:1], opener, 'call tool="', "a" * MAX_HEADER_BYTES, "b"))
    assert [
        ReasoningDelta("x"),
        ContentDelta(("<|open|>" if spelled else "") + 'call tool="' + "a" * MAX_HEADER_BYTES + "b"),
    ] == events
    assert 1 == parser.recoveries[Recovery.BROKEN_MARKER]


@pytest.mark.parametrize(("num_texts", "repeated"), [(MAX_REPEATED_TEXTS, True), (MAX_REPEATED_TEXTS + 1, False)])
def test_only_an_answer_of_moderate_length_is_repeated(byte: Any, num_texts: int, repeated: bool) -> None:
    text = "a" * num_texts
    token_ids = byte.write(text, CLOSE_RESPONSE)
    expected = [["reasoning", text], *([["content", text]] if repeated else []), ["finish", "stop"]]
    assert expected == byte.read(byte.parser(thinking=True), [[token_id] for token_id in token_ids])
    assert expected == byte.read(byte.parser(thinking=True), [token_ids])


def test_reasoning_is_not_repeated_where_there_is_an_answer(byte: Any) -> None:
    pieces = ("Hm", *CLOSE_THINK, "Yes", CLOSE_RESPONSE, ["open", "think", "sep"], "More", CLOSE_RESPONSE)
    expected = [["reasoning", "Hm"], ["content", "Yes"], ["reasoning", "More"], ["finish", "stop"]]
    assert expected == byte.read(byte.parser(thinking=True), [byte.write(*pieces)])


def test_two_parsers_share_nothing(byte: Any) -> None:
    one, two = byte.parser(), byte.parser()
    one.feed(byte.write("a", ["sep"]))
    assert {} == two.recoveries
    assert [["finish", "stop"]] == byte.read(two, [])


def test_recoveries_are_named_once() -> None:
    assert sorted({kind.value for kind in Recovery}) == sorted(kind.value for kind in Recovery)


@pytest.mark.parametrize(
    ("max_calls", "delivered", "recoveries"),
    [
        (None, ["f", "g", "h"], {}),
        (3, ["f", "g", "h"], {}),
        (1, ["f"], {"extra_call": 2}),
        (0, [], {"forbidden_call": 3}),
    ],
)
def test_calls_beyond_those_that_may_be_are_dropped(
    byte: Any, max_calls: int | None, delivered: list[str], recoveries: dict[str, int]
) -> None:
    argument = (["open", 'argument key="k" type="string"', "sep"], "v", ["close", "argument", "sep"])
    calls = [(["open", f'call tool="{name}"', "sep"], *argument, ["close", "call", "sep"]) for name in "fgh"]
    token_ids = byte.write("Hm", CLOSE_RESPONSE, TOOLS, *calls[0], *calls[1], *calls[2], ["close", "tools", "sep"])
    parser = byte.parser(max_calls=max_calls)
    expected: list[list[Any]] = [["content", "Hm"]]
    for index, name in enumerate(delivered):
        expected += [["call", index, name], ["arguments", index, '{"k": "v"}'], ["end", index]]
    assert [*expected, ["finish", "tool_calls" if delivered else "stop"]] == byte.read(parser, [token_ids])
    assert recoveries == parser.recoveries
