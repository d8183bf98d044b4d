"""What a grammar is made of, apart from any engine's notation.

Role: the schema compiler writes nodes, `ebnf` prints them for the engine, `derivation` finds texts in them. All are immutable and
small: what is large or recursive is a rule of its own, known by its name.
Invariant: a rule's node has no cycle but through `Reference`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Sequenced
from dataclasses import dataclass
from typing import Final

from server.grammar.automaton import Automaton
from server.grammar.budget import Budget


@dataclass(frozen=True, slots=True)
class Literal:
    """Exactly this text. `syntax`: punctuation of JSON (see `Guard.parts`)."""

    text: str
    syntax: bool = False


@dataclass(frozen=True, slots=True)
class Control:
    """Exactly this control token."""

    token_id: int


@dataclass(frozen=True, slots=True)
class FreeText:
    """`low` to `high` ordinary tokens, whatever they are; None: no upper bound."""

    low: int = 0
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Word:
    """A text that the automaton accepts, and what ends it.

    `quoted`: written as in a JSON string, without its quotes. `ending`: the closing quote, or the control token behind a raw
    text. It belongs to the word because it is known then, at every character, whether the text may end. None: it ends by itself.
    `inside`: the word stands in a JSON object or array.
    """

    automaton: Automaton
    quoted: bool = False
    ending: Literal | Control | None = None
    inside: bool = False


@dataclass(frozen=True, slots=True)
class Sequence:
    """All `parts`, in order."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of `options`."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`low` to `high` times; None: no upper bound."""

    node: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Reference:
    """The rule of this name."""

    name: str


Node = Literal | Control | FreeText | Word | Sequence | Choice | Repeat | Reference

EMPTY: Final = Sequence(())
NOTHING: Final = Choice(())
"""Matches no text at all."""


def sequence(*parts: Node) -> Node:
    """All of them; nothing, if one of them is."""
    flat: list[Node] = []
    for part in parts:
        if part == NOTHING:
            return NOTHING
        if isinstance(part, Sequence):
            flat += part.parts
        elif isinstance(part, Literal) and flat and isinstance(before := flat[-1], Literal):
            flat[-1] = Literal(before.text + part.text, part.syntax)
        else:
            flat.append(part)
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat))


def choice(options: Iterable[Node]) -> Node:
    """Any of them; those that match nothing are left out."""
    flat: dict[Node, None] = {}
    for option in options:
        flat.update(dict.fromkeys(option.options) if isinstance(option, Choice) else {option: None})
    return next(iter(flat)) if len(flat) == 1 else Choice(tuple(flat))


class Rules:
    """The rules of one grammar. Raises `SpentError` where they have more nodes than `room` allows."""

    def __init__(self, room: Budget) -> None:
        self.nodes: dict[str, Node] = {}
        self.paths: dict[str, str] = {}
        """Rule -> where in the request it comes from, for those that come from a schema."""
        self._names: dict[Node, str] = {}
        self._room = room
        self._serial = 0

    def reserve(self, hint: str, path: str | None = None) -> Reference:
        """A name for a rule that is to be defined, so that it can refer to itself."""
        self._serial += 1
        name = f"{hint}{self._serial}"
        self.nodes[name] = NOTHING
        if path is not None:
            self.paths[name] = path
        return Reference(name)

    def define(self, reference: Reference, node: Node) -> None:
        """Say what a reserved name stands for."""
        self._room.spend(sum(_size(part) for part in walk(node)))
        self.nodes[reference.name] = node

    def forget(self, reference: Reference) -> None:
        """Give up a reserved name that nothing refers to."""
        del self.nodes[reference.name]
        self.paths.pop(reference.name, None)

    def add(self, hint: str, node: Node) -> Node:
        """A reference to `node` as a rule. Equal nodes share one; what is short stays as it is."""
        if isinstance(node, Reference | Literal | Control | FreeText) or node in (EMPTY, NOTHING):
            return node
        name = self._names.get(node)
        if name is None:
            reference = self.reserve(hint)
            self.define(reference, node)
            name = self._names[node] = reference.name
        return Reference(name)


def walk(node: Node) -> Iterator[Node]:
    """`node` and all nodes in it, references not followed."""
    queue: list[Node] = [node]
    while queue:
        node = queue.pop()
        yield node
        queue += children(node)


def children(node: Node) -> Sequenced[Node]:
    """The nodes right in `node`."""
    match node:
        case Sequence(parts):
            return parts
        case Choice(options):
            return options
        case Repeat(inner):
            return (inner,)
    return ()


def _size(node: Node) -> int:
    """What a node takes in a grammar, in units of some 20 bytes."""
    match node:
        case Literal(text):
            return 1 + len(text) // 16
        case Word(automaton):
            return 2 * len(automaton.edges)
        case Repeat(_, low, high):
            return 1 + (low if high is None else high)
    return 1
