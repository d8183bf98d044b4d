"""From JSON Schema to the ways in which a value may be written: as JSON, or as an argument's raw text.

Role: the compiler of schemas. `schema` says what must hold, `strings`, `numbers`, `constants` and `containers` know the parts,
this puts them together.
Invariant: whatever the nodes derive is valid against the schema, but for the paths that were noted. Schemas that refer to
themselves become rules that do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from server.grammar.automaton import TooLargeError
from server.grammar.base import Bounds
from server.grammar.characters import ANY
from server.grammar.constants import constants
from server.grammar.containers import array_node, object_node
from server.grammar.ebnf import QUOTED
from server.grammar.equality import kind_of
from server.grammar.library import Library
from server.grammar.nodes import (
    EMPTY,
    NOTHING,
    Control,
    FreeText,
    Literal,
    Node,
    Reference,
    Rules,
    Word,
    choice,
    sequence,
)
from server.grammar.numbers import Bound
from server.grammar.schema import Document, Parts
from server.grammar.strings import Strings

MAX_LEVELS: Final = 60
_QUOTE: Final = Literal('"', syntax=True)
_TAGS: Final = {"integer": "number"}
_WORK_OF_VALUE: Final = 20


class Way(NamedTuple):
    """One way to satisfy a conjunction: a type and what else holds, or values of that type."""

    kind: str
    parts: Parts
    depth: int | None
    values: list[Any] | None = None


class ValueCompiler:
    """Compiles the schemas of one document. Raises `TooLargeError` where a grammar would take too much room."""

    def __init__(
        self,
        rules: Rules,
        document: Document,
        bounds: Bounds,
        library: Library,
        close: Control,
        *,
        spaced: bool,
        any_order: int | None,
    ) -> None:
        """`close`: what ends an argument. `spaced`: JSON may have a blank behind commas and colons. `any_order`: see `keys`."""
        self.rules = rules
        self.document = document
        self.bounds = bounds
        self.any_order = any_order
        self.note = document.note
        self.work = document.work
        self.library = library
        self.strings = Strings(library, document.note, bounds.exact_chars, bounds.counted_chars)
        self.quoted = QUOTED
        self.dead: list[str] = []
        """Paths of required things that can have no value, inner ones first."""
        blank = choice([Literal(" "), EMPTY]) if spaced else EMPTY
        self.comma = rules.add("c", sequence(Literal(",", syntax=True), blank))
        self.colon = rules.add("c", sequence(Literal(":", syntax=True), blank))
        self._close = close
        self._known: dict[tuple[tuple[int, ...], int | None, bool], Node] = {}
        self._used: set[str] = set()

    def json(self, parts: Parts, depth: int | None, *, inside: bool, level: int = 0) -> Node:
        """Any value of `parts` as JSON.

        `depth`: how often a schema may still be entered again, None: as often as the model likes. `inside`: of an object or
        array.
        """
        if level > MAX_LEVELS:
            raise TooLargeError("nesting")
        self.work.spend(_WORK_OF_VALUE)
        parts = tuple(part for part in parts if part.schema is not True and part.schema != {})
        key = (tuple(id(part.schema) for part in parts), depth, inside)
        if key in self._known:
            node = self._known[key]
            if isinstance(node, Reference):
                self._used.add(node.name)
            return node
        reference = self.rules.reserve("v", parts[0].path if parts else None)
        self._known[key] = reference
        node = choice(self._json_way(way, inside, level) for way in self.ways(parts, depth))
        if reference.name in self._used:
            self.rules.define(reference, node)
        else:
            self.rules.forget(reference)
            self._known[key] = self.rules.add("v", node)
        return self._known[key]

    def arguments(self, parts: Parts, depth: int | None) -> dict[str, Node]:
        """K3's type -> any value of that type that `parts` allow, as an argument's text, with what closes it."""
        found: dict[str, list[Node]] = {}
        for way in self.ways(parts, depth):
            if way.kind != "string":
                node = self._ended(self._json_way(way, False, 1))
            elif way.values is not None:
                node = choice(sequence(Literal(value), self._close) for value in way.values)
            else:
                node = self._raw(way.parts)
            found.setdefault(_TAGS.get(way.kind, way.kind), []).append(node)
        return {kind: self.rules.add("a", node) for kind, nodes in found.items() if (node := choice(nodes)) != NOTHING}

    def ways(self, parts: Parts, depth: int | None) -> list[Way]:
        """All ways to satisfy `parts`."""
        found: list[Way] = []
        for branch in self.document.branches(parts):
            self.work.spend(_WORK_OF_VALUE * (1 + len(branch.parts) // 4))
            left = depth - 1 if depth is not None and branch.recursive else depth
            if left is not None and left < 0:
                continue
            kinds = self.document.kinds(branch.parts)
            values = constants(branch.parts, kinds, self.strings, self.note, self.work)
            if values is None:
                scalars = left == 0 and not branch.parts
                found += [Way(kind, branch.parts, left) for kind in kinds if not scalars or kind not in ("object", "array")]
            else:
                groups: dict[str, list[Any]] = {}
                for value in values:
                    groups.setdefault(kind_of(value), []).append(value)
                found += [Way(kind, branch.parts, left, group) for kind, group in groups.items()]
        return found

    def _json_way(self, way: Way, inside: bool, level: int) -> Node:
        if way.values is not None:
            return choice(self._constant(value) for value in way.values)
        match way.kind:
            case "string":
                return self._quoted(way.parts, inside)
            case "number" | "integer":
                return self._number(way.parts, integer=way.kind == "integer")
            case "boolean":
                return choice([Literal("true"), Literal("false")])
            case "null":
                return Literal("null")
            case "object":
                return self.rules.add("o", object_node(self, way.parts, way.depth, level))
        return self.rules.add("l", array_node(self, way.parts, way.depth, level))

    def _ended(self, node: Node) -> Node:
        """`node` and the end of the argument. What ends by itself is told its end, so that it is known at every digit."""
        if isinstance(node, Word) and node.ending is None:
            return Word(node.automaton, node.quoted, self._close)
        return sequence(node, self._close)

    def _constant(self, value: Any) -> Node:
        if isinstance(value, list) and value:
            items = [part for item in value for part in (self.comma, self._constant(item))]
            return sequence(Literal("[", syntax=True), *items[1:], Literal("]", syntax=True))
        if isinstance(value, Mapping) and value:
            members = [
                part
                for key, item in value.items()
                for part in (self.comma, Literal(json.dumps(key, ensure_ascii=False)), self.colon, self._constant(item))
            ]
            return sequence(Literal("{", syntax=True), *members[1:], Literal("}", syntax=True))
        return Literal(json.dumps(value, ensure_ascii=False))

    def _raw(self, parts: Parts) -> Node:
        """A string argument: its text as it is."""
        text = self.strings.text(parts, ANY, self.bounds.json_chars)
        if text.free:
            return sequence(FreeText(text.least, self.bounds.string_tokens), self._close)
        return NOTHING if text.automaton.empty else Word(text.automaton, ending=self._close)

    def _quoted(self, parts: Parts, inside: bool) -> Node:
        """A JSON string."""
        text = self.strings.text(parts, QUOTED, self.bounds.json_chars)
        if text.automaton.empty:
            return NOTHING
        return sequence(_QUOTE, Word(text.automaton, quoted=True, ending=_QUOTE, inside=inside))

    def _number(self, parts: Parts, *, integer: bool) -> Node:
        low = high = None
        steps: list[int] = []
        for part in parts:
            for key, is_open in (("minimum", False), ("exclusiveMinimum", True)):
                if (bound := self._bound(part.schema.get(key), part.below(key), is_open)) is not None:
                    low = max(low or bound, bound, key=lambda one: (one.value, one.open))
            for key, is_open in (("maximum", False), ("exclusiveMaximum", True)):
                if (bound := self._bound(part.schema.get(key), part.below(key), is_open)) is not None:
                    high = min(high or bound, bound, key=lambda one: (one.value, not one.open))
            step = part.schema.get("multipleOf")
            if isinstance(step, int | float) and not isinstance(step, bool) and 1 <= step < 2**53 and step == int(step):
                steps.append(int(step))
            elif step is not None:
                self.note(part.below("multipleOf"))
        return self._number_word(parts, low, high, steps, integer or bool(steps))

    def _number_word(self, parts: Parts, low: Bound | None, high: Bound | None, steps: list[int], integer: bool) -> Node:
        digits = self.bounds.digits
        try:
            found = self.library.number(low, high, tuple(steps), integer=integer, digits=digits)
        except TooLargeError:
            found = self.library.number(None, None, (), integer=integer, digits=digits)
            for part in parts:
                for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"):
                    if key in part.schema:
                        self.note(part.below(key))
        return NOTHING if found.empty else Word(found)

    def _bound(self, value: Any, path: str, is_open: bool) -> Bound | None:
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) != float("inf"):
            return Bound(Decimal(str(value)), is_open)
        if value is not None:
            self.note(path)
        return None
