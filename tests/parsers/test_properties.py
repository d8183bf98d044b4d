"""Answers with up to three anomalies, cut into steps in every way: what a client gets is what `answers.py` says.

A case is one answer read in one way of cutting it. The events and the recoveries of every case must be exactly those that the
writer of the answer noted, so no anomaly passes uncounted, no call is lost and no marker leaks; what a stream adds up to must be the
collected body. Long runs: `pytest -m long tests/parsers/test_properties.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Coroutine, Iterator
from random import Random
from typing import Any, NamedTuple

import orjson
import pytest

from server.engine.base import EngineDelta
from server.events import Event
from server.parsers.recovery import Recovery
from server.parsers.stop import StopFilter, StopStrings
from server.reading import AnswerReader
from server.record import GenerationRecord
from server.streaming.chat import ChatBody, ChatChunks, ChatShape
from server.vocabulary.pieces import PieceTable
from server.vocabulary.special_slots import special_slots
from tests.parsers.answers import ANOMALIES, Answer, Writer
from tests.parsers.conftest import Pen, Words, joined

NUM_CASES = 100_000
SIZES = (2, 3, 5, 8, 13, 20)
FEATURES = ("thinking", "declared", "typed", "limited")


class WordVocabulary(PieceTable):
    """Every byte, and the words that markers are made of, as in K3's own vocabulary: short answers with long tokens."""

    def __init__(self) -> None:
        words = ["think", "response", "tools", "call", "argument", "json", "message", ' tool="', ' key="', ' type="', '" index="']
        words += [
            '"',
            "string",
            "number",
            "object",
            "null",
            "true",
            "The",
            " fox",
            " 北京",
            "|>",
            "<|",
            "|>x",
            "sep",
            "open",
            "1,",
            '{"',
        ]
        pieces = list(dict.fromkeys([bytes([value]) for value in range(256)] + [word.encode() for word in words]))
        control = special_slots(len(pieces))
        super().__init__([*pieces, *(name.encode() for name in control)], control)
        self._words = sorted((piece for piece in pieces if len(piece) > 1), key=len, reverse=True)
        self._ids = {piece: token_id for token_id, piece in enumerate(pieces)}

    def encode(self, text: str, most: int | None = None) -> list[int]:
        data, position, token_ids = text.encode(), 0, []
        while position < len(data):
            word = next((word for word in self._words if data.startswith(word, position)), data[position : position + 1])
            token_ids.append(self._ids[word])
            position += len(word)
        return token_ids


class Case(NamedTuple):
    """One answer in token ids; `stop`: strings that end it."""

    answer: Answer
    token_ids: list[int]
    stop: tuple[str, ...]


def draw(random: Random) -> tuple[Answer, tuple[str, ...]]:
    """An answer of any kind; a third of them are searched for stop strings, of which most come."""
    flags = {name: random.random() < 0.5 for name in ("thinking", "declared", "typed")}
    max_calls = random.choice((None, None, 0, 1, 2))
    answer = Writer(random, **flags, max_calls=max_calls, chosen=set(random.sample(ANOMALIES, random.randrange(4)))).write()
    content = "".join(word[1] for word in answer.events if word[0] == "content")
    if not content or random.random() < 0.67:
        return answer, ()
    start = random.randrange(len(content))
    return answer, (content[start : start + random.randrange(1, 5)], "never", random.choice("{<x!"))


def cuts(random: Random, token_ids: list[int], num_pairs: int) -> Iterator[list[list[int]]]:
    """Ways to cut an answer into steps: single tokens, steps of a size, at random, and in two."""
    length = len(token_ids)
    yield [[token_id] for token_id in token_ids]
    for size in SIZES:
        yield [token_ids[start : start + size] for start in range(0, length, size)]
    for _ in range(3):
        places = sorted(random.sample(range(length + 1), min(length, random.randrange(1, 6))))
        yield [token_ids[start:end] for start, end in zip([0, *places], [*places, length], strict=True)]
    for place in range(1, length) if num_pairs >= length else random.sample(range(1, length), min(num_pairs, length - 1)):
        yield [token_ids[:place], token_ids[place:]]


def stopped(events: Words, stop: tuple[str, ...]) -> Words:
    """What is left of `events` where content ends at the first stop string: the one that is complete first, of those the longest."""
    passed: Words = []
    for word in events:
        text = word[1] if word[0] == "content" else ""
        for end in range(1, len(text) + 1):
            if found := [string for string in stop if text[:end].endswith(string)]:
                before = text[: end - max(map(len, found))]
                finish = "tool_calls" if any(word[0] == "end" for word in passed) else "stop"
                return [*passed, *([["content", before]] if before else []), ["finish", finish]]
        passed.append(word)
    return passed


class Reading(NamedTuple):
    """One case, read. `outputs`: the events of each step."""

    outputs: list[list[Event]]
    recoveries: dict[str, int]
    num_reasoning_tokens: int

    @property
    def words(self) -> Words:
        return joined([event for events in self.outputs for event in events])


def read(pen: Pen, case: Case, steps: list[list[int]], reason: str = "stop") -> Reading:
    parser = pen.parser(thinking=case.answer.thinking, **case.answer.expected)
    if not case.stop:
        outputs = [parser.feed(step) for step in steps]
        return Reading([*outputs, parser.finish(reason)], parser.recoveries, parser.num_reasoning_tokens)
    reader = AnswerReader(parser, StopFilter(StopStrings(case.stop)), pen.vocabulary)
    outputs = []
    for number, step in enumerate(steps):
        finish = reason if number == len(steps) - 1 else None
        outputs.append(reader.read(EngineDelta(step, finish_reason=finish))[0])  # type: ignore[arg-type]
        if reader.finish is not None:
            break
    return Reading(outputs, parser.recoveries, parser.num_reasoning_tokens)


# Streamed and collected


class Said(NamedTuple):
    choice: int
    events: list[Event]
    logprobs: None = None


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")


def answered_twice(pen: Pen, reading: Reading) -> tuple[dict[str, Any], dict[str, Any]]:
    """The collected message, and what a client makes of the streamed one; ids left out, cut calls withdrawn."""
    shape = ChatShape("k3", 0, GenerationRecord("r", "t", "k3", 0.0), pen.vocabulary, ("reasoning_content",))

    async def outputs() -> Any:
        for events in reading.outputs:
            yield Said(0, events)

    body = orjson.loads(run(ChatBody(shape, 1).collect(outputs)))["choices"][0]
    calls = body["message"].get("tool_calls", [])
    assert "tool_calls" not in body["message"] or calls, "an empty list of calls"
    collected = {
        "reasoning": body["message"].get("reasoning_content", ""),
        "content": body["message"]["content"] or "",
        "calls": [(call["function"]["name"], call["function"]["arguments"]) for call in calls],
        "finish": body["finish_reason"],
    }
    chunks = ChatChunks(shape, include_usage=False)
    streamed: dict[str, Any] = {"reasoning": "", "content": "", "calls": {}, "finish": None}
    for frame in b"".join(chunks.render(Said(0, events)) for events in reading.outputs).split(b"\n\n"):
        if not frame:
            continue
        choice = orjson.loads(frame.removeprefix(b"data: "))["choices"][0]
        streamed["reasoning"] += choice["delta"].get("reasoning_content", "")
        streamed["content"] += choice["delta"].get("content", "")
        streamed["finish"] = choice["finish_reason"] or streamed["finish"]
        for call in choice["delta"].get("tool_calls", []):
            name, arguments = streamed["calls"].get(call["index"], ("", ""))
            function = call["function"]
            streamed["calls"][call["index"]] = (name + function.get("name", ""), arguments + function["arguments"])
    cut = {word[1] for word in reading.words if word[0] == "cut"}
    streamed["calls"] = [call for index, call in streamed["calls"].items() if index not in cut]
    return collected, streamed


# The properties


def check_whole(pen: Pen, case: Case, random: Random, num_pairs: int) -> int:
    """Reads an answer in many ways. Returns their number."""
    expected = stopped(case.answer.events, case.stop)
    for word in expected:
        if word[0] == "end":
            assert isinstance(json.loads(next(each[2] for each in expected if each[:2] == ["arguments", word[1]])), dict)
    num_reasoning_tokens = None
    number = 0
    for number, steps in enumerate(cuts(random, case.token_ids, num_pairs), start=1):
        reading = read(pen, case, steps)
        assert expected == reading.words
        if not case.stop:  # what comes behind a stop string is read or not, as the steps happen to be
            assert case.answer.recoveries == reading.recoveries
            num_reasoning_tokens = num_reasoning_tokens or reading.num_reasoning_tokens
            assert num_reasoning_tokens == reading.num_reasoning_tokens
        if number % 8 == 1:
            collected, streamed = answered_twice(pen, reading)
            assert collected == streamed
            assert (collected["finish"] == "tool_calls") == bool(collected["calls"])
    return number


def check_truncated(pen: Pen, case: Case, random: Random) -> int:
    """The answer ends anywhere, as at a limit: what was said is the beginning of the whole, and half a call is cut."""
    whole, case = case.answer.events[:-1], case._replace(stop=())
    length = random.randrange(len(case.token_ids))
    token_ids = case.token_ids[:length]
    first = read(pen, case, [token_ids], "length")
    *words, finish = first.words
    assert ["finish", "length"] == finish
    if words and words[-1][0] == "cut":
        index = words.pop()[1]
        assert "call" == next(word[0] for word in reversed(words) if word[0] != "arguments")
        assert index == sum(word[0] == "call" for word in words) - 1
    if words:
        *before, last = words
        assert whole[: len(before)] == before
        assert whole[len(before)][:-1] == last[:-1]
        assert last == whole[len(before)] or whole[len(before)][-1].startswith(last[-1].rstrip("\ufffd"))
    number = 1
    for steps in cuts(random, token_ids, 3) if len(token_ids) > 1 else ():
        again = read(pen, case, steps, "length")
        assert first.words == again.words
        assert (first.recoveries, first.num_reasoning_tokens) == (again.recoveries, again.num_reasoning_tokens)
        number += 1
    collected, streamed = answered_twice(pen, first)
    assert collected == streamed
    return number


def sweep(pens: dict[Pen, float], seed: int, num_cases: int, least: int = 5) -> None:
    """Answers until there are `num_cases` cases, each by one of the `pens`, which have weights; every anomaly `least` times."""
    random = Random(seed)
    num_done = 0
    met: Counter[str] = Counter()
    while num_done < num_cases:
        state = random.getrandbits(48)
        random = Random(state)
        answer, stop = draw(random)
        pen = random.choices(list(pens), list(pens.values()))[0]
        case = Case(answer, pen.write(*answer.pieces), stop)
        try:
            num_done += check_whole(pen, case, random, len(case.token_ids) if random.random() < 0.1 else 12)
            num_done += check_truncated(pen, case, random)
        except AssertionError as error:
            raise AssertionError(
                f"state {state}: {answer.anomalies} {answer.expected} {stop}\n{answer.pieces}\n{error}"
            ) from error
        met.update(answer.anomalies)
        met.update(answer.recoveries)
    assert num_cases <= num_done
    assert set() == {name for name in (*ANOMALIES, *Recovery) if met[name] < least}, "too seldom to say anything"


def test_every_answer_is_read_the_same_however_it_is_cut(byte: Pen) -> None:
    sweep({byte: 1, Pen(WordVocabulary()): 4}, seed=3, num_cases=NUM_CASES)


def test_the_same_in_the_words_of_k3(k3: Pen) -> None:
    sweep({k3: 1}, seed=4, num_cases=NUM_CASES // 4, least=1)


@pytest.mark.long
def test_a_million_cases(byte: Pen) -> None:
    sweep({byte: 1, Pen(WordVocabulary()): 4}, seed=5, num_cases=10 * NUM_CASES)
