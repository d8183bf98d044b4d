"""Objects and arrays of JSON.

Role: the part of the compiler that puts values into brackets; what stands in them is the compiler's again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from server.grammar.automaton import Automaton, TooLargeError
from server.grammar.base import Bounds
from server.grammar.budget import Budget
from server.grammar.characters import ANY, CharSet
from server.grammar.constants import spellable
from server.grammar.keys import MAX_COUNTED, Layout, Member, members
from server.grammar.library import Library
from server.grammar.nodes import NOTHING, Literal, Node, Repeat, Rules, Word, choice, sequence
from server.grammar.schema import Part, Parts, integer, mapping
from server.grammar.strings import Strings, other_names

MAX_REPEATED: Final = 500
MAX_BOUNDED_NAME: Final = 24
"""Characters of an undeclared key, where texts are bounded at all."""

_WORK_OF_KEY: Final = 10
_OPEN_ARRAY: Final = Literal("[", syntax=True)
_CLOSE_ARRAY: Final = Literal("]", syntax=True)
_OPEN_OBJECT: Final = Literal("{", syntax=True)
_CLOSE_OBJECT: Final = Literal("}", syntax=True)
_QUOTE: Final = Literal('"', syntax=True)


class Compiler(Protocol):
    """What containers need of the compiler of values."""

    rules: Rules
    bounds: Bounds
    library: Library
    strings: Strings
    note: Callable[[str], None]
    work: Budget
    dead: list[str]
    any_order: int | None
    comma: Node
    colon: Node
    quoted: CharSet

    def json(self, parts: Parts, depth: int | None, *, inside: bool, level: int) -> Node: ...


class Fields:
    """What a conjunction says about the keys of an object.

    `declared`: key -> the schemas of its value. `patterns`: further keys by pattern. `others`: the schemas of all other keys'
    values, None where there may be none: unless a schema says otherwise, what it declares is all that may come.
    """

    def __init__(self, parts: Parts, strings: Strings, note: Callable[[str], None], work: Budget) -> None:
        self._parts = parts
        self._strings = strings
        self.declared: dict[str, Parts | None] = {}
        self.patterns: list[tuple[Automaton, Parts | None]] = []
        self.required: set[str] = set()
        self.names: Automaton | None = None
        self.others: Parts | None = ()
        self.low = 0
        self.high: int | None = None
        self._note = note
        tables = [(part, mapping(part, "properties", note), self._compiled(part)) for part in parts]
        for part, properties, patterns in tables:
            work.spend(2 * len(properties) + len(tables) * len(patterns))
            self._read_counts(part)
            self.declared.update(dict.fromkeys(properties))
        self.declared.update(dict.fromkeys(sorted(self.required)))
        num_patterns = sum(len(patterns) for _, _, patterns in tables)
        for key in self.declared:
            work.spend(_WORK_OF_KEY + len(tables) + num_patterns * (1 + len(key)))
            self.declared[key] = _value_of(key, tables)
        for part, _, patterns in tables:
            for automaton, schema in patterns:
                rest = _others([table for table in tables if table[0] is not part])
                self.patterns.append((automaton, None if rest is None else (schema, *rest)))
        self.others = _others(tables)
        if (
            self.others is None
            and self.low > len(self.declared)
            and not any("additionalProperties" in part.schema for part in parts)
        ):
            self.others = ()

    def path_of(self, key: str) -> str:
        """Where a required key is declared, or else where it is required."""
        values = self.declared[key]
        if values:
            return values[0].path
        lists = ((part, part.schema.get("required")) for part in self._parts)
        return next(part for part, keys in lists if isinstance(keys, list) and key in keys).below("required")

    def _compiled(self, part: Part) -> list[tuple[Automaton, Part]]:
        found: list[tuple[Automaton, Part]] = []
        for pattern, schema in mapping(part, "patternProperties", self._note).items():
            automaton = self._strings.compiled(pattern, part.below("patternProperties", pattern))
            if automaton is not None:
                found.append((automaton, Part(schema, part.below("patternProperties", pattern))))
        return found

    def _read_counts(self, part: Part) -> None:
        required = part.schema.get("required")
        if isinstance(required, list):
            self.required.update(key for key in required if isinstance(key, str))
        elif required is not None:
            self._note(part.below("required"))
        self.low = max(self.low, integer(part, "minProperties", self._note) or 0)
        if (most := integer(part, "maxProperties", self._note)) is not None:
            self.high = most if self.high is None else min(self.high, most)
        names = part.schema.get("propertyNames")
        if isinstance(names, Mapping):
            found = self._strings.text((Part(names, part.below("propertyNames")),), ANY).automaton
            self.names = found if self.names is None else self._strings.both(self.names, found) or found
            if set(names) - {"type", "pattern", "format", "minLength", "maxLength", "description", "title"}:
                self._note(part.below("propertyNames"))


def _value_of(key: str, tables: list[tuple[Part, Mapping[str, Any], list[tuple[Automaton, Part]]]]) -> Parts | None:
    """The schemas of one key's value, None where one of the tables forbids the key."""
    found: list[Part] = []
    for part, properties, patterns in tables:
        matching = [schema for automaton, schema in patterns if automaton.accepts(key)]
        found += matching
        if key in properties:
            found.append(Part(properties[key], part.below("properties", key)))
        elif not matching:
            other = part.schema.get("additionalProperties")
            if other is False:
                return None
            if isinstance(other, Mapping):
                found.append(Part(other, part.below("additionalProperties")))
    return tuple(found)


def _others(tables: list[tuple[Part, Mapping[str, Any], list[tuple[Automaton, Part]]]]) -> Parts | None:
    """The schemas of the values of keys that none of `tables` names."""
    found: list[Part] = []
    for part, properties, patterns in tables:
        other = part.schema.get("additionalProperties", part.schema.get("unevaluatedProperties"))
        if other is False or (other is None and (properties or patterns)):
            return None
        if isinstance(other, Mapping):
            found.append(Part(other, part.below("additionalProperties")))
    return tuple(found)


def object_node(compiler: Compiler, parts: Parts, depth: int | None, level: int) -> Node:
    """Any object of `parts`."""
    fields = Fields(parts, compiler.strings, compiler.note, compiler.work)
    given: list[Member] = []
    for key, values in fields.declared.items():
        required = key in fields.required
        node: Node = NOTHING
        if values is not None and spellable(key) and (fields.names is None or fields.names.accepts(key)):
            value = compiler.json(values, depth, inside=True, level=level + 1)
            name = Literal(json.dumps(key, ensure_ascii=False))
            node = compiler.rules.add("m", sequence(name, compiler.colon, value))
        if node == NOTHING and required:
            compiler.dead.append(fields.path_of(key))
        given.append(Member(key, node, required))
    note_uncounted(fields, given, parts, compiler)
    layout = Layout(_CLOSE_OBJECT, compiler.comma, _extra(compiler, fields, depth, level), compiler.bounds.extra_keys)
    inner = members(compiler.rules, given, layout, fields.low, fields.high, compiler.any_order)
    return sequence(_OPEN_OBJECT, inner)


def note_uncounted(fields: Fields, given: list[Member], parts: Parts, compiler: Compiler) -> None:
    """Note bounds on the number of keys that are not held: too many keys to count, or further keys, which may be repeated."""
    uncounted = [key for key in ("minProperties", "maxProperties") if len(given) > MAX_COUNTED]
    if fields.low > len(fields.required) + 1 and (fields.others is not None or fields.patterns):
        uncounted.append("minProperties")
    for part in parts:
        for key in uncounted:
            if key in part.schema:
                compiler.note(part.below(key))


def _extra(compiler: Compiler, fields: Fields, depth: int | None, level: int) -> Node | None:
    """A member with a key that is not declared."""
    options: list[Node] = []
    for names, values in other_members(fields, compiler.quoted, compiler):
        left = depth - 1 if depth is not None and not values else depth
        value = compiler.json(values, left, inside=True, level=level + 1)
        if compiler.bounds.json_chars is not None:
            names = compiler.strings.capped(names, min(MAX_BOUNDED_NAME, compiler.bounds.json_chars), compiler.quoted)
        key = Word(names, quoted=True, ending=_QUOTE, inside=True)
        options.append(sequence(_QUOTE, key, compiler.colon, value))
    extra = choice(options)
    return None if extra == NOTHING else compiler.rules.add("m", extra)


def other_members(fields: Fields, chars: CharSet, compiler: Compiler) -> list[tuple[Automaton, Parts]]:
    """Names of keys that are not declared, and the schemas of their values."""
    found: list[tuple[Automaton, Parts]] = []
    patterns = [automaton for automaton, _ in fields.patterns]
    groups = [(index, values) for index, (_, values) in enumerate(fields.patterns)]
    for index, values in [*groups, (-1, fields.others)]:
        if values is None:
            continue
        rest = [pattern for number, pattern in enumerate(patterns) if number != index]
        wanted = fields.names
        if index >= 0:
            wanted = patterns[index] if wanted is None else compiler.strings.both(wanted, patterns[index])
        try:
            names = other_names(fields.declared, rest, wanted, chars, compiler.library)
        except TooLargeError:
            continue
        if not names.empty:
            found.append((names, values))
    return found


def array_node(compiler: Compiler, parts: Parts, depth: int | None, level: int) -> Node:
    """Any array of `parts`."""
    low, high = 0, None
    for part in parts:
        low = max(low, integer(part, "minItems", compiler.note) or 0)
        if (most := integer(part, "maxItems", compiler.note)) is not None:
            high = most if high is None else min(high, most)
        for key, bound in (("minItems", low), ("maxItems", high or 0)):
            if bound > MAX_REPEATED and key in part.schema:
                compiler.note(part.below(key))
    low = min(low, MAX_REPEATED)
    high = None if high is not None and high > MAX_REPEATED else high
    if compiler.bounds.items is not None:
        high = max(low, compiler.bounds.items) if high is None else min(high, max(low, compiler.bounds.items))
    if high is not None and high < low:
        return NOTHING
    first, rest = _items(parts, compiler.work)
    left = depth - 1 if depth is not None and not rest else depth
    following = NOTHING if rest is None else compiler.json(rest, left, inside=True, level=level + 1)
    nodes = [compiler.json(item, depth, inside=True, level=level + 1) for item in first]
    return sequence(_OPEN_ARRAY, _items_from(compiler, nodes, following, low, high))


def _items_from(compiler: Compiler, nodes: list[Node], following: Node, low: int, high: int | None) -> Node:
    """`low` to `high` items, those of `nodes` and then any number of `following`, and the bracket."""
    count = len(nodes) if high is None else min(len(nodes), high)
    most = None if high is None else high - count
    least = max(0, low - count)
    next_ = sequence(compiler.comma, following)
    if following == NOTHING or most == 0:
        behind: Node = NOTHING if least else _CLOSE_ARRAY
    elif count:
        behind = sequence(Repeat(compiler.rules.add("i", next_), least, most), _CLOSE_ARRAY)
    else:
        repeat = Repeat(compiler.rules.add("i", next_), max(0, least - 1), None if most is None else most - 1)
        some = sequence(following, repeat, _CLOSE_ARRAY)
        return some if least else choice([_CLOSE_ARRAY, some])
    for index in range(count - 1, -1, -1):
        item = sequence(compiler.comma, nodes[index]) if index else nodes[index]
        options = [sequence(item, compiler.rules.add("i", behind))]
        if index >= low:
            options.append(_CLOSE_ARRAY)
        behind = choice(options)
    return behind


def _items(parts: Parts, work: Budget) -> tuple[list[Parts], Parts | None]:
    """The schemas of the first items, and those of all further ones, None where there may be none."""
    tables: list[tuple[list[Part], Part | bool | None]] = []
    for part in parts:
        items = part.schema.get("items")
        prefix = part.schema.get("prefixItems")
        key, rest = ("prefixItems", "items") if isinstance(prefix, list) else ("items", "additionalItems")
        first = prefix if isinstance(prefix, list) else items if isinstance(items, list) else []
        after = part.schema.get(rest) if first else items
        work.spend(2 * len(first))
        here = [Part(schema, part.below(key, index)) for index, schema in enumerate(first)]
        further: Part | bool | None = False if after is False else Part(after, part.below("items" if not first else rest))
        tables.append((here, None if after is None or after is True else further))
    count = max((len(first) for first, _ in tables), default=0)
    positions: list[Parts] = []
    work.spend(count * len(tables))
    for index in range(count + 1):
        found: list[Part] = []
        for first, further in tables:
            if index < len(first):
                found.append(first[index])
            elif further is False:
                return positions, None
            elif isinstance(further, Part):
                found.append(further)
        positions.append(tuple(found))
    return positions[:-1], positions[-1]
