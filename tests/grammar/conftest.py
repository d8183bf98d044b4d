"""Vocabularies, the engine's grammar compiler, and readers of answers, for the tests of this folder."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from collections.abc import Sequence as Sequenced
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from server.events import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from server.grammar import answer
from server.grammar.answer import Answer
from server.grammar.base import Bounds, Grammar, Shape
from server.grammar.factory import GrammarFactory
from server.grammar.library import Library
from server.grammar.markup import Markup
from server.parsers.factory import ParserFactory
from server.vocabulary.base import Vocabulary
from server.vocabulary.byte import ByteVocabulary
from server.vocabulary.load import load


@dataclass
class Call:
    name: str
    arguments: str = ""

    def value(self) -> Any:
        return json.loads(self.arguments)


@dataclass
class Reading:
    """What a parser made of an answer."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    recoveries: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Speaker:
    """Everything about one vocabulary."""

    vocabulary: Vocabulary

    @cached_property
    def markup(self) -> Markup:
        return Markup(self.vocabulary)

    @cached_property
    def parsers(self) -> ParserFactory:
        return ParserFactory("kimi_k3", self.vocabulary)

    def factory(self, bounds: Bounds | None = None) -> GrammarFactory:
        return GrammarFactory("kimi_k3", self.vocabulary, bounds)

    def grammar(self, shape: Shape, bounds: Bounds | None = None) -> Grammar:
        grammar = self.factory(bounds).make(shape)
        assert grammar is not None
        return grammar

    def compiled(self, shape: Shape, bounds: Bounds | None = None) -> Answer:
        found = answer.compiled(shape, self.markup, bounds or Bounds(), Library())
        assert found is not None
        return found

    def write(self, *pieces: str | Sequenced[str]) -> list[int]:
        """Token ids: strings are ordinary text, in lists `open`, `close`, `sep`, `end_of_msg` are control tokens."""
        token_ids: list[int] = []
        for piece in pieces:
            for word in [piece] if isinstance(piece, str) else piece:
                control = None if isinstance(piece, str) else self.vocabulary.control.get(f"<|{word}|>")
                token_ids += self.vocabulary.encode(word) if control is None else [control]
        return token_ids

    def calls(self, *calls: tuple[str, Sequenced[tuple[str, str, str]]], content: str = "") -> list[int]:
        """An answer with calls: (tool, (key, type, text) of each argument), as the model is to write it."""
        pieces: list[Any] = [content, ["close", "response", "sep"], ["open", "tools", "sep"]]
        for index, (tool, arguments) in enumerate(calls):
            pieces.append(["open", f'call tool="{tool}" index="{index + 1}"', "sep"])
            for key, kind, text in arguments:
                pieces += [["open", f'argument key="{key}" type="{kind}"', "sep"], text, ["close", "argument", "sep"]]
            pieces.append(["close", "call", "sep"])
        return self.write(*pieces, ["close", "tools", "sep"], ["close", "message", "sep"], ["end_of_msg"])

    def guarded(self, arguments: Sequenced[tuple[str, str, str]], tool: str = "f") -> list[int]:
        """An answer with one call; characters that begin a control token's name are tokens of their own."""
        firsts = "".join(sorted({name[0] for name in self.vocabulary.control}))
        pieces: list[Any] = [
            ["close", "response", "sep"],
            ["open", "tools", "sep"],
            ["open", f'call tool="{tool}" index="1"', "sep"],
        ]
        for key, kind, text in arguments:
            spelled = [part for part in re.split(f"([{re.escape(firsts)}])", text) if part]
            pieces += [["open", f'argument key="{key}" type="{kind}"', "sep"], *spelled, ["close", "argument", "sep"]]
        pieces += [["close", "call", "sep"], ["close", "tools", "sep"], ["close", "message", "sep"], ["end_of_msg"]]
        return self.write(*pieces)

    def read(self, token_ids: Sequenced[int], *, thinking: bool = False) -> Reading:
        parser = self.parsers.make(thinking=thinking)
        reading = Reading()
        for event in [*parser.feed(list(token_ids)), *parser.finish("stop")]:
            match event:
                case ReasoningDelta(text):
                    reading.reasoning += text
                case ContentDelta(text):
                    reading.content += text
                case ToolCallStart(_, name):
                    reading.calls.append(Call(name))
                case ToolCallArguments(index, fragment):
                    reading.calls[index].arguments += fragment
        reading.recoveries = dict(parser.recoveries)
        return reading


class Engine:
    """xgrammar over one vocabulary, as vLLM uses it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self._xgrammar = xgrammar
        end = vocabulary.control["<|end_of_msg|>"]
        self._end = end
        self._size = vocabulary.size
        info = xgrammar.TokenizerInfo(
            list(vocabulary.pieces), vocab_type=xgrammar.VocabType.RAW, vocab_size=vocabulary.size, stop_token_ids=[end]
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=2)

    def matcher(self, grammar: Grammar) -> Any:
        compiled = self._compiler.compile_structural_tag(grammar.structural_tag)
        return self._xgrammar.GrammarMatcher(compiled, override_stop_tokens=[self._end])

    def num_accepted(self, grammar: Grammar, token_ids: Sequenced[int]) -> int:
        """How many of `token_ids` are accepted, in order; all of them only where the answer has ended then."""
        matcher = self.matcher(grammar)
        mask = self._xgrammar.allocate_token_bitmask(1, self._size)
        for number, token_id in enumerate(token_ids):
            # The mask decides what is sampled: `max_tokens` is in the mask, while a token that breaks it is accepted.
            matcher.fill_next_token_bitmask(mask, 0)
            if not int(mask[0, token_id // 32]) >> token_id % 32 & 1 or not matcher.accept_token(token_id):
                return number
        return len(token_ids) if matcher.is_terminated() else len(token_ids) - 1

    def allowed(self, grammar: Grammar, token_ids: Sequenced[int]) -> set[int]:
        """What may come behind `token_ids`, as the mask has it."""
        matcher = self.matcher(grammar)
        for number, token_id in enumerate(token_ids):
            assert matcher.accept_token(token_id), number
        mask = self._xgrammar.allocate_token_bitmask(1, self._size)
        matcher.fill_next_token_bitmask(mask, 0)
        words = [word & 0xFFFFFFFF for word in mask[0].tolist()]
        return {number * 32 + bit for number, word in enumerate(words) if word for bit in range(32) if word >> bit & 1}

    def accepts(self, grammar: Grammar, token_ids: Sequenced[int]) -> bool:
        return self.num_accepted(grammar, token_ids) == len(token_ids)


@pytest.fixture(scope="session")
def byte() -> Speaker:
    return Speaker(ByteVocabulary())


@pytest.fixture(scope="session")
def k3(shared: Path) -> Speaker:
    return Speaker(load(shared / "k3" / "tiktoken.model"))


@pytest.fixture(scope="session", params=["byte", "k3"])
def speaker(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def engine_of() -> Callable[[Speaker], Engine]:
    if importlib.util.find_spec("xgrammar") is None:
        pytest.skip("xgrammar is not installed; it comes with vLLM")
    engines: dict[int, Engine] = {}

    def engine(speaker: Speaker) -> Engine:
        if id(speaker) not in engines:
            engines[id(speaker)] = Engine(speaker.vocabulary)
        return engines[id(speaker)]

    return engine
