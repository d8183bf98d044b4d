"""Texts that a grammar derives: what is shortest, and whether there is one at all.

Role: a schema that no finite value satisfies is found here, and a scripted engine learns how to answer politely.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final

from server.grammar.ebnf import escaped
from server.grammar.guard import Guard
from server.grammar.nodes import (
    EMPTY,
    NOTHING,
    Choice,
    Control,
    FreeText,
    Literal,
    Node,
    Reference,
    Repeat,
    Sequence,
    Word,
    choice,
)
from server.vocabulary.base import Vocabulary

ENDLESS: Final = float("inf")


class Lengths:
    """The length of a short text of each rule; `ENDLESS` where there is none.

    It is the shortest but where rules refer to each other in circles; following the shortest options ends in any case.
    """

    def __init__(self, rules: dict[str, Node]) -> None:
        self._rules = rules
        self._of: dict[str, float] = {}

    def update(self) -> None:
        """Look at the rules that were added."""
        new = list(itertools.takewhile(lambda name: name not in self._of, reversed(self._rules)))[::-1]
        self._of.update(dict.fromkeys(new, ENDLESS))
        while new:
            for name in new:
                self._of[name] = self.of(self._rules[name])
            left = [name for name in new if self._of[name] == ENDLESS]
            if len(left) == len(new):
                break
            new = left

    def prune(self) -> None:
        """Take out of the rules what derives nothing."""
        if any(length == ENDLESS for length in self._of.values()):
            for name, node in self._rules.items():
                self._rules[name] = self._prune(node)

    def of(self, node: Node) -> float:
        """The length of the shortest text of `node`. A reference counts, so that following the shortest one ends."""
        match node:
            case Literal(text):
                return len(text)
            case Control():
                return 1
            case FreeText(low):
                return low
            case Word(automaton):
                return len(automaton.shortest()) + 1
            case Sequence(parts):
                return sum(self.of(part) for part in parts)
            case Choice(options):
                return min((self.of(option) for option in options), default=ENDLESS)
            case Repeat(inner, low):
                return low * self.of(inner) if low else 0
            case Reference(name):
                return self._of[name] + 1

    def blame(self, node: Node, paths: Mapping[str, str]) -> str | None:
        """The path of the innermost rule that keeps `node` from deriving anything."""
        path: str | None = None
        seen: set[str] = set()
        while True:
            match node:
                case Reference(name):
                    if name in seen:
                        return path
                    seen.add(name)
                    path = paths.get(name, path)
                    node = self._rules[name]
                case Sequence(parts):
                    node = next(part for part in parts if self.of(part) == ENDLESS)
                case Choice(options) if options:
                    node = options[0]
                case Repeat(inner):
                    node = inner
                case _:
                    return path

    def _prune(self, node: Node) -> Node:
        if self.of(node) == ENDLESS:
            return NOTHING
        match node:
            case Sequence(parts):
                return Sequence(tuple(self._prune(part) for part in parts))
            case Choice(options):
                return choice(kept for option in options if (kept := self._prune(option)) != NOTHING)
            case Repeat(inner, low, high):
                return EMPTY if self.of(inner) == ENDLESS else Repeat(self._prune(inner), low, high)
        return node


class Shortest:
    """Writes the shortest text of a node as token ids."""

    def __init__(self, rules: Mapping[str, Node], lengths: Lengths, vocabulary: Vocabulary, guard: Guard) -> None:
        self._rules = rules
        self._lengths = lengths
        self._vocabulary = vocabulary
        self._guard = guard

    def write(self, root: Node) -> list[int]:
        """Token ids; ordinary ones spell text, control tokens are themselves."""
        token_ids: list[int] = []
        queue = [root]
        while queue:
            node = queue.pop()
            match node:
                case Literal(text, syntax):
                    token_ids += self._text(text, syntax=syntax)
                case Control(token_id):
                    token_ids.append(token_id)
                case FreeText(low):
                    token_ids += self._vocabulary.encode("a") * low
                case Word():
                    text = node.automaton.shortest()
                    token_ids += self._text(escaped(text) if node.quoted else text)
                    if node.ending is not None:
                        queue.append(node.ending)
                case Sequence(parts):
                    queue += reversed(parts)
                case Choice(options):
                    queue.append(min(options, key=self._lengths.of))
                case Repeat(inner, low):
                    queue += [inner] * low
                case Reference(name):
                    queue.append(self._rules[name])
        return token_ids

    def _text(self, text: str, *, syntax: bool = False) -> list[int]:
        token_ids: list[int] = []
        for part in self._guard.parts(text, syntax=syntax):
            token_ids += [part] if isinstance(part, int) else self._vocabulary.encode(part)
        return token_ids
