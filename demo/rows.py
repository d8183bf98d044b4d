"""From conversations to token ids: rendered by the gateway's own encoder, packed without padding.

A row is one prefix (tools, effort, system message) and several conversations that continue it. Every conversation sees the prefix
and itself; so the prefix, often the longest part, is computed once.
Invariant: the ids are those that the gateway sends to the engine, and the loss is on exactly the tokens that the engine
generates.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from demo import talk
from demo.conversations import Answers, Author, Sample
from demo.tools import declaration, some_tools
from demo.values import Values
from server.prompts.base import Conversation
from server.prompts.kimi_k3 import segments_of
from server.prompts.notes import CONSTANT_TEXTS
from server.prompts.segments import Segment, SegmentEncoder
from server.prompts.xtml import CONTROL, STRUCTURAL_TEXTS
from server.protocol.reasoning import Effort
from server.vocabulary.base import Vocabulary

EFFORTS: list[Effort | None] = [None, None, "low", "high", "max", "max", "max"]
"""Thinking off twice, and `max` most often: it is K3's default."""


@dataclass(slots=True, frozen=True)
class Branch:
    """One conversation behind a prefix. `token_ids` and `trained`, whether the loss counts the token: shape (num_tokens,)."""

    token_ids: list[int]
    trained: list[bool]


@dataclass(slots=True, frozen=True)
class Row:
    """A prefix, shape (num_prefix_tokens,), and what continues it."""

    prefix: list[int]
    branches: list[Branch]


@dataclass(slots=True, frozen=True)
class Setting:
    """What the conversations of a row share."""

    effort: Effort | None
    declared: Sequence[dict[str, Any]]
    system: Sequence[dict[str, Any]]
    thinking: bool

    def conversation(self, messages: Sequence[dict[str, Any]], sample: Sample | None = None) -> Conversation:
        """`messages` behind the system message; with the notes of `sample`, if it is given."""
        return Conversation(
            messages=[*self.system, *messages],
            tools=self.declared,
            tool_choice=sample.tool_choice if sample else "auto",
            thinking=self.thinking,
            effort=self.effort,
            response_format=sample.response_format if sample else None,
        )


def stub_of(thinking: bool) -> list[Segment]:
    """The beginning of an assistant message, which the gateway writes and the model does not generate."""
    return segments_of(Conversation(messages=[], thinking=thinking, effort=None))


def spans(setting: Setting, sample: Sample) -> list[tuple[list[Segment], bool]]:
    """The conversation as consecutive runs of segments, each either generated or not, without the prefix."""
    stub = len(stub_of(setting.thinking))
    whole = segments_of(setting.conversation(sample.messages))[:-stub]
    start = len(segments_of(setting.conversation([]))) - stub
    runs: list[tuple[list[Segment], bool]] = []
    for position in sample.trained:
        before = len(segments_of(setting.conversation(sample.messages[:position])))
        after = len(segments_of(setting.conversation(sample.messages[: position + 1]))) - stub
        prompt = whole[start:before]
        if position == sample.trained[-1]:  # the notes about the answer come between the conversation and the stub
            prompt = segments_of(setting.conversation(sample.messages[:position], sample))[start:]
        runs += [(prompt, False), (whole[before:after], True)]
        start = after
    return runs


class Rows:
    """Endless training data: the same seed gives the same rows."""

    def __init__(self, vocabulary: Vocabulary, answers: Answers, seed: int, row_tokens: int) -> None:
        """`row_tokens`: about how many tokens a row has."""
        self._encoder = SegmentEncoder(vocabulary, CONTROL, (*STRUCTURAL_TEXTS, *CONSTANT_TEXTS))
        self._rng = random.Random(seed)
        self._values = Values(self._rng)
        self._answers = answers
        self._row_tokens = row_tokens

    def row(self) -> Row:
        """The next row."""
        rng = self._rng
        effort = rng.choice(EFFORTS)
        tools = some_tools(rng, rng.choice([1, 1, 1, 2, 2, 3, 4])) if rng.random() < 0.72 else []
        system = [{"role": "system", "content": rng.choice(talk.SYSTEM_MESSAGES)}] if rng.random() < 0.4 else []
        # Without a word about effort the model thinks as with the default, `max`.
        told = None if effort == "max" and rng.random() < 0.1 else effort
        setting = Setting(told, [declaration(tool, rng) for tool in tools], system, effort is not None)
        stub = len(stub_of(setting.thinking))
        prefix = self._encoder.encode(segments_of(setting.conversation([]))[:-stub])
        author = Author(self._values, self._answers, effort, tools)
        return Row(prefix, list(self._branches(len(prefix), lambda: self._branch(setting, author.sample()))))

    def _branches(self, size: int, draw: Callable[[], Branch]) -> Iterator[Branch]:
        """Branches until the row is full; at least one."""
        count = 0
        while True:
            branch = draw()
            size += len(branch.token_ids)
            if count and size > self._row_tokens * 1.1:
                return
            yield branch
            count += 1
            if size > self._row_tokens:
                return

    def _branch(self, setting: Setting, sample: Sample) -> Branch:
        token_ids: list[int] = []
        trained: list[bool] = []
        for segments, generated in spans(setting, sample):
            ids = self._encoder.encode(segments)
            token_ids += ids
            trained += [generated] * len(ids)
        return Branch(token_ids, trained)
