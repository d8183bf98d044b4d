"""The conversations that the adapter is trained on."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from demo.cases import CASES
from demo.conversations import Answers, Author, Sample
from demo.rows import Row, Rows, Setting, spans, stub_of
from demo.tools import declaration, mentioned, request, request_of_several, some_tools
from demo.values import Values
from server.events import ToolCallEnd, ToolCallStart
from server.parsers.factory import ParserFactory
from server.prompts.kimi_k3 import segments_of
from server.prompts.segments import Segment
from server.protocol.reasoning import Effort
from server.vocabulary.byte import ByteVocabulary

ANSWERS = Answers([("What is rain?", "Rain is water.")], [("Write a story.", "Once upon a time.")])
VOCABULARY = ByteVocabulary()
PARSERS = ParserFactory("kimi_k3", VOCABULARY)
SEEDS = range(12)


def _rows(seed: int, count: int = 6) -> list[Row]:
    source = Rows(VOCABULARY, ANSWERS, seed, row_tokens=2500)
    return [source.row() for _ in range(count)]


def _sample(seed: int, effort: Effort | None) -> tuple[Setting, Sample]:
    rng = random.Random(seed)
    tools = some_tools(rng, seed % 3)
    setting = Setting(effort, [declaration(tool, rng) for tool in tools], [], effort is not None)
    return setting, Author(Values(rng), ANSWERS, effort, tools).sample()


def test_same_seed_gives_the_same_rows() -> None:
    assert _rows(3) == _rows(3)
    assert _rows(3) != _rows(4)


@pytest.mark.parametrize("effort", [None, "low", "max"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_comes_before_an_answer_is_the_gateways_prompt(seed: int, effort: Effort | None) -> None:
    setting, sample = _sample(seed, effort)
    runs = spans(setting, sample)
    prefix = segments_of(setting.conversation([]))[: -len(stub_of(setting.thinking))]
    last = sample.trained[-1]
    before: list[Segment] = [segment for segments, _ in runs[:-1] for segment in segments]
    assert segments_of(setting.conversation(sample.messages[:last], sample)) == prefix + before


@pytest.mark.parametrize("seed", SEEDS)
def test_every_trained_answer_is_well_formed_and_ends(seed: int) -> None:
    end = VOCABULARY.control["<|end_of_msg|>"]
    for row in _rows(seed):
        thinking = VOCABULARY.decode(row.prefix + row.branches[0].token_ids).find("<|open|>think<|sep|>") >= 0
        for branch in row.branches:
            answers: list[list[int]] = [[]]
            for token_id, trained in zip(branch.token_ids, branch.trained, strict=True):
                if trained:
                    answers[-1].append(token_id)
                elif answers[-1]:
                    answers.append([])
            assert not answers.pop() or branch.trained[-1]
            for answer in [a for a in answers if a]:
                parser = PARSERS.make(thinking=thinking)
                events = [*parser.feed(answer), *parser.finish("stop")]
                assert {} == parser.recoveries
                assert end == answer[-1]
                starts = [event.index for event in events if isinstance(event, ToolCallStart)]
                assert starts == [event.index for event in events if isinstance(event, ToolCallEnd)]


@pytest.mark.parametrize("seed", SEEDS)
def test_calls_have_what_the_request_mentions_and_no_more(seed: int) -> None:
    rng = random.Random(seed)
    for tool in some_tools(rng, 4):
        for template in tool.requests:
            assert set(tool.required) <= mentioned(template) <= set(tool.parameters)
            text, (name, arguments) = request(replace(tool, requests=[template]), Values(rng))
            assert (tool.name, sorted(mentioned(template))) == (name, list(arguments))
            assert "<" not in text


@pytest.mark.parametrize("seed", SEEDS)
def test_one_sentence_for_several_calls_names_each_value(seed: int) -> None:
    rng = random.Random(seed)
    for tool in some_tools(rng, 4):
        if asked := request_of_several(tool, Values(rng), 3):
            text, calls = asked
            values = [value for _, arguments in calls for value in arguments.values() if isinstance(value, str)]
            assert len(calls) > 1
            assert all(value in text for value in values)


def test_forgotten_reasoning_is_not_learned() -> None:
    for seed in range(60):
        _, sample = _sample(seed, "high")
        for position, message in enumerate(sample.messages):
            if message["role"] == "assistant":
                assert ("reasoning_content" in message) == (position in sample.trained)


def test_tools_of_the_evaluation_are_not_all_trained() -> None:
    """Half of its calls are for tools that the training data can't contain."""
    new = {name for case in CASES if case.group == "call, new tool" for name, _ in case.calls}
    trained = "".join(VOCABULARY.decode(row.prefix) for seed in SEEDS for row in _rows(seed))
    assert new
    assert [] == [name for name in new if f'"{name}"' in trained]
