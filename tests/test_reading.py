"""What a client is told of the tokens: log probabilities belong to the content, whatever is held back on the way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.calls import CallGate
from server.engine.base import EngineDelta, TokenLogprob
from server.events import ContentDelta, Event, FinishReason, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from server.parsers.factory import ParserFactory
from server.parsers.stop import StopFilter, StopStrings
from server.reading import AnswerReader
from server.schemas.declared import DeclaredTools
from server.vocabulary.byte import ByteVocabulary

VOCABULARY = ByteVocabulary()
PARSERS = {name: ParserFactory(name, VOCABULARY) for name in ("kimi_k3", "plain")}
OPEN, CLOSE, SEP, END = (VOCABULARY.control[f"<|{name}|>"] for name in ("open", "close", "sep", "end_of_msg"))
CONTENT = st.text("abé<|€", max_size=12)
STOPS = st.lists(st.text("abé<|€", min_size=1, max_size=4), max_size=4)


def marker(kind: int, text: str) -> list[int]:
    return [kind, *text.encode(), SEP]


def answer(reasoning: str, content: str, *, calls: bool) -> list[int]:
    """One answer of K3, from inside its reasoning on."""
    token_ids = [*reasoning.encode(), *marker(CLOSE, "think"), *marker(OPEN, "response"), *content.encode()]
    token_ids += marker(CLOSE, "response")
    if calls:
        token_ids += [*marker(OPEN, "tools"), *marker(OPEN, 'call tool="f" index="1"'), *marker(CLOSE, "call")]
        token_ids += marker(CLOSE, "tools")
    return [*token_ids, *marker(CLOSE, "message"), END]


def read(
    token_ids: Sequence[int],
    cuts: Sequence[int],
    stop: Sequence[str],
    *,
    format_name: str = "kimi_k3",
    vocabulary: Any = VOCABULARY,
) -> tuple[list[tuple[bytes, bytes]], FinishReason | None]:
    """Content and tokens of each output, as bytes, and the end."""
    factory = PARSERS[format_name] if vocabulary is VOCABULARY else ParserFactory(format_name, vocabulary)
    reader = AnswerReader(factory.make(thinking=True), StopFilter(StopStrings(stop)) if stop else None, vocabulary)
    outputs: list[tuple[bytes, bytes]] = []
    edges = [0, *sorted(cuts), len(token_ids)]
    for number, (begin, end) in enumerate(pairwise(edges), start=2):
        part = token_ids[begin:end]
        logprobs = [TokenLogprob(token_id, -0.5) for token_id in part]
        events, told = reader.read(EngineDelta(part, logprobs, "stop" if number == len(edges) else None))
        assert told is not None
        content = "".join(event.text for event in events if isinstance(event, ContentDelta)).encode()
        outputs.append((content, b"".join(vocabulary.pieces[logprob.token_id] for logprob in told)))
        if reader.finish is not None:
            break
    return outputs, reader.finish


@given(reasoning=st.text("ab€", max_size=4), content=CONTENT, stop=STOPS, calls=st.booleans(), data=st.data())
def test_the_tokens_are_those_of_the_content(
    reasoning: str, content: str, stop: list[str], calls: bool, data: st.DataObject
) -> None:
    token_ids = answer(reasoning, content, calls=calls)
    cuts = data.draw(st.lists(st.integers(0, len(token_ids)), max_size=6))
    outputs, finish = read(token_ids, cuts, stop)

    assert b"".join(content for content, _ in outputs) == b"".join(tokens for _, tokens in outputs)
    assert finish is not None


@given(content=CONTENT, stop=STOPS, data=st.data())
def test_without_channels_too(content: str, stop: list[str], data: st.DataObject) -> None:
    token_ids = [*content.encode(), END]
    cuts = data.draw(st.lists(st.integers(0, len(token_ids)), max_size=6))
    outputs, _ = read(token_ids, cuts, stop, format_name="plain")

    assert b"".join(content for content, _ in outputs) == b"".join(tokens for _, tokens in outputs)


@pytest.mark.parametrize("before", [[], list(b"abc")])
def test_text_that_only_looked_like_a_marker_keeps_its_tokens(before: list[int]) -> None:
    token_ids = [*before, *marker(CLOSE, "think"), *b" <|ope x", *marker(CLOSE, "response"), END]
    outputs, _ = read(token_ids, range(len(token_ids)), [])

    assert b"".join(content for content, _ in outputs) == b"<|ope x"
    assert b"".join(tokens for _, tokens in outputs) == b"<|ope x"


def test_a_broken_character_comes_with_its_bytes() -> None:
    token_ids = [*marker(CLOSE, "think"), *marker(OPEN, "response"), *b"a\xe2\x82", *marker(CLOSE, "response"), END]
    outputs, _ = read(token_ids, range(len(token_ids)), [])

    assert b"".join(content for content, _ in outputs) == "a\ufffd".encode()
    assert b"".join(tokens for _, tokens in outputs) == b"a\xe2\x82"


def test_a_token_that_a_stop_string_cuts_in_two_is_told() -> None:
    class Merged(ByteVocabulary):
        """Its first token is `Paris`."""

        def __init__(self) -> None:
            super().__init__()
            self._pieces[0] = b"Paris"

    token_ids = [0, *b"! ", 0, END]
    outputs, finish = read(token_ids, range(len(token_ids)), ["! Par", "is"], format_name="plain", vocabulary=Merged())

    assert ([(b"Par", b"Paris")], FinishReason.STOP) == (outputs[1:], finish)


@given(
    reasoning=st.text("ab€", max_size=4),
    content=CONTENT,
    calls=st.booleans(),
    holds=st.sampled_from([None, False, True]),
    stop=st.sampled_from([[], ["é"]]),
    data=st.data(),
)
def test_text_that_takes_the_short_way_is_read_as_all_is(
    reasoning: str, content: str, calls: bool, holds: bool | None, stop: list[str], data: st.DataObject
) -> None:
    whole = answer(reasoning, content, calls=calls)
    at = len(whole) - len([*marker(CLOSE, "message"), END])
    token_ids = [*whole[:at], *content.encode(), *whole[at:]]  # text astray, which a gate may have closed to
    cuts = data.draw(st.just(list(range(1, len(token_ids)))) | st.lists(st.integers(0, len(token_ids)), max_size=8))
    edges = [0, *sorted(cuts), len(token_ids)]

    def events() -> tuple[list[list[Event]], FinishReason | None, dict[str, int]]:
        gate = None if holds is None else CallGate(DeclaredTools({}), holds=holds)
        filters = StopFilter(StopStrings(stop)) if stop else None
        reader = AnswerReader(PARSERS["kimi_k3"].make(thinking=True), filters, VOCABULARY, gate)
        found: list[list[Event]] = []
        for number, (begin, end) in enumerate(pairwise(edges), start=2):
            delta = EngineDelta(token_ids[begin:end], None, "stop" if number == len(edges) else None)
            found.append(list(reader.read(delta)[0]))
            if reader.finish is not None:
                break
        return found, reader.finish, dict(reader.calls)

    short = events()
    with patch("server.reading._TEXTS", frozenset()):
        assert events() == short


class Said:
    """A parser that returns one list of events after the other."""

    def __init__(self, *said: list[Event]) -> None:
        self._said = iter(said)
        self.num_reasoning_tokens = 0
        self.recoveries: dict[str, int] = {}

    def feed(self, token_ids: Sequence[int]) -> list[Event]:
        return next(self._said)

    def finish(self, reason: str) -> list[Event]:
        return []


@pytest.mark.parametrize("text", [ContentDelta("no"), ReasoningDelta("no")])
def test_no_text_passes_a_gate_that_has_closed(text: Event) -> None:
    parser = Said([ToolCallStart(0, "f"), ToolCallArguments(0, "{}"), ToolCallEnd(0)], [text])
    reader = AnswerReader(parser, None, VOCABULARY, CallGate(DeclaredTools({}), holds=True))
    deltas = [EngineDelta([1]), EngineDelta([2])]

    assert [([], None), ([], None)] == [reader.read(delta) for delta in deltas]
