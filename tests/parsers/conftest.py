"""Vocabularies, and how the tests of this folder write and read answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from server.events import ContentDelta, Event, Finish, ReasoningDelta, ToolCallArguments, ToolCallCut, ToolCallEnd, ToolCallStart
from server.parsers.base import Expected, Parser
from server.parsers.factory import ParserFactory
from server.vocabulary.base import Vocabulary
from server.vocabulary.byte import ByteVocabulary
from server.vocabulary.load import load

K3_FILE = Path(__file__).resolve().parents[3] / "shared" / "k3" / "tiktoken.model"

Words = list[list[Any]]


@dataclass(frozen=True)
class Pen:
    """Writes answers in one vocabulary, and reads what a parser makes of them."""

    vocabulary: Vocabulary

    def write(self, *pieces: Any) -> list[int]:
        """Token ids of `pieces`.

        A string is ordinary tokens. In a list, names of control tokens, short (`open`) or whole (`[EOS]`), are
        those, and all else is ordinary. `{"bytes": hex}` is one token a byte.
        """
        token_ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, str):
                token_ids += self.vocabulary.encode(piece)
            elif isinstance(piece, dict):
                token_ids += [self.vocabulary.pieces.index(bytes([byte])) for byte in bytes.fromhex(piece["bytes"])]
            else:
                for word in piece:
                    control = self.vocabulary.control.get(f"<|{word}|>", self.vocabulary.control.get(word))
                    token_ids += self.vocabulary.encode(word) if control is None else [control]
        return token_ids

    def parser(self, *, thinking: bool = False, tools: Sequence[str] | None = None, **expected: Any) -> Parser:
        return self._factory.make(thinking=thinking, expected=Expected(tool_names=tools, **expected))

    @cached_property
    def _factory(self) -> ParserFactory:
        return ParserFactory("kimi_k3", self.vocabulary)

    def read(self, parser: Parser, steps: Sequence[Sequence[int]], reason: str = "stop") -> Words:
        """The joined events of an answer that comes in `steps`, as words."""
        events = [event for step in steps for event in parser.feed(step)]
        return joined([*events, *parser.finish(reason)])


def joined(events: Sequence[Event]) -> Words:
    """Events as words, neighbouring deltas of a kind joined."""
    words: Words = []
    for event in events:
        match event:
            case ReasoningDelta(text):
                word: list[Any] = ["reasoning", text]
            case ContentDelta(text):
                word = ["content", text]
            case ToolCallStart(index, name):
                word = ["call", index, name]
            case ToolCallArguments(index, fragment):
                word = ["arguments", index, fragment]
            case ToolCallEnd(index):
                word = ["end", index]
            case ToolCallCut(index):
                word = ["cut", index]
            case Finish(reason):
                word = ["finish", reason.value]
        assert all(part != "" for part in word[-1:]), f"an empty delta: {event}"
        if word[0] in ("reasoning", "content", "arguments") and words and words[-1][:-1] == word[:-1]:
            words[-1][-1] += word[-1]
        else:
            words.append(word)
    return words


@pytest.fixture(scope="session")
def join() -> Callable[[Sequence[Event]], Words]:
    return joined


@pytest.fixture(scope="session")
def byte() -> Pen:
    return Pen(ByteVocabulary())


@pytest.fixture(scope="session")
def k3() -> Pen:
    if not K3_FILE.is_file():
        pytest.skip("K3's merge table is not beside the checkout")
    return Pen(load(K3_FILE))


@pytest.fixture(scope="session", params=["byte", "k3"])
def pen(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)
