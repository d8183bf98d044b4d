"""Stop strings: found wherever they stand in content, whatever the steps, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.events import ContentDelta, Finish, FinishReason, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from server.parsers.stop import StopFilter, StopStrings

TEXT = st.text("ab", max_size=20)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)


def naive(text: str, stop: list[str]) -> tuple[str, str | None]:
    """The content up to the stop string that is complete first, the longest of those; and that string."""
    for end in range(len(text) + 1):
        found = [string for string in stop if text[:end].endswith(string)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(text=TEXT, stop=STOPS, data=st.data())
def test_as_a_search_of_the_whole_text(text: str, stop: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    stop_filter = StopFilter(StopStrings(stop))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    passed = "".join(stop_filter.feed(part) for part in parts)
    expected, matched = naive(text, stop)
    assert expected == (passed if matched else passed + stop_filter.flush())
    assert matched == stop_filter.matched


@given(text=TEXT, stop=STOPS)
def test_only_the_beginning_of_a_stop_string_is_held_back(text: str, stop: list[str]) -> None:
    stop_filter = StopFilter(StopStrings(stop))
    passed = ""
    for position, character in enumerate(text):
        passed += stop_filter.feed(character)
        if stop_filter.matched:
            return
        held = text[len(passed) : position + 1]
        read = text[: position + 1]
        beginnings = [string[:length] for string in stop for length in range(len(string))]
        assert held == max((beginning for beginning in beginnings if read.endswith(beginning)), key=len, default="")


def test_reasoning_and_arguments_are_not_searched(join: Callable[..., Any]) -> None:
    events = [
        ReasoningDelta("a STOP b"),
        ContentDelta("fine S"),
        ToolCallStart(0, "STOP"),
        ToolCallArguments(0, '{"a": "STOP"}'),
        ToolCallEnd(0),
        ContentDelta("TOP"),
        Finish(FinishReason.TOOL_CALLS),
    ]
    stop_filter = StopFilter(StopStrings(["STOP"]))
    assert join(events) == join([passed for event in events for passed in stop_filter.filter([event])])
    assert stop_filter.matched is None


def test_content_before_the_stop_string_is_passed_and_nothing_after_it() -> None:
    stop_filter = StopFilter(StopStrings(["END", "\n\n"]))
    assert [ReasoningDelta("r"), ContentDelta("one ")] == stop_filter.filter([ReasoningDelta("r"), ContentDelta("one E")])
    assert [] == stop_filter.filter([ContentDelta("N")])
    assert [] == stop_filter.filter([ContentDelta("D two"), ToolCallStart(0, "f"), Finish(FinishReason.STOP)])
    assert "END" == stop_filter.matched
    assert [] == stop_filter.filter([ContentDelta("three")])


def test_what_is_held_back_comes_out_before_the_finish() -> None:
    stop_filter = StopFilter(StopStrings(["END"]))
    assert [ContentDelta("one ")] == stop_filter.filter([ContentDelta("one EN")])
    assert [ContentDelta("EN"), Finish(FinishReason.LENGTH)] == stop_filter.filter([Finish(FinishReason.LENGTH)])


@pytest.mark.parametrize("stop", [[], [""]])
def test_without_stop_strings_all_passes(stop: list[str]) -> None:
    stop_filter = StopFilter(StopStrings(stop))
    assert "abc" == stop_filter.feed("abc")
    assert stop_filter.matched is None


@pytest.mark.parametrize("special", list("^]-[\\.*"))
def test_special_characters_are_themselves(special: str) -> None:
    stop_filter = StopFilter(StopStrings([special, "zz"]))
    assert "a" == stop_filter.feed("a" + special + "b")
    assert special == stop_filter.matched


def test_every_character_costs_the_same() -> None:
    """The worst text for a search that begins again: it almost matches everywhere. Counted in comparisons, not in time."""

    class Counted(list[Any]):
        num_steps = 0

        def __getitem__(self, node: Any) -> Any:
            self.num_steps += 1  # a state that is tried for a character
            return super().__getitem__(node)

    stop = StopStrings(["a" * 32 + "b", "a" * 16 + "c"])
    stop.automaton.following = counted = Counted(stop.automaton.following)
    stop_filter = StopFilter(stop)
    for _ in range(1000):
        stop_filter.feed("a")
    assert 1000 <= counted.num_steps <= 2 * 1000


def test_answers_of_one_request_are_searched_side_by_side() -> None:
    stop = StopStrings(["END"])
    one, other = StopFilter(stop), StopFilter(stop)
    assert ["a", "b"] == [one.feed("aEN"), other.feed("bE")]
    assert ["", ""] == [one.feed("D"), other.feed("N")]
    assert ["END", None] == [one.matched, other.matched]
    assert "EN!" == other.feed("!")
