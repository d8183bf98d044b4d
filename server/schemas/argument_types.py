"""Which types of JSON a schema allows for the arguments of a tool.

Role: what a parser may rely on when the model's own type tag does not fit. Invariant: a superset; a type that is missing here is
one that the schema does not allow, so nothing that fits is ever turned into something else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from server.schemas.document import Document
from server.schemas.keywords import TYPES, stands_alone

ALL: Final = frozenset(TYPES)
_NOTHING: Final[frozenset[str]] = frozenset()
_MAX_DEPTH: Final = 64
_MAX_LOOKS: Final = 20_000
"""At properties, each as often as a schema takes it over from another; some 10 ms."""


def argument_types(document: Document) -> Mapping[str, frozenset[str]]:
    """Types of each declared property of the arguments; a property is left out where anything goes, or nothing.

    `number` comes with `integer`, which is a number, too; a property of integers has `integer` alone. Nothing is told of a schema
    in which that would take long.
    """
    try:
        types = _TypeReader(document).properties(document.root)
    except _TooManyError:
        return {}
    return {key: allowed for key, allowed in types.items() if allowed and allowed != ALL}


def root_types(document: Document) -> frozenset[str]:
    """Types of the whole value."""
    return _TypeReader(document).types(document.root)


class _TooManyError(Exception):
    """There are more properties than are worth a look."""


class _TypeReader:
    """Reads one document; each schema in it once, however often references lead to it."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._types: dict[int, frozenset[str]] = {}
        self._properties: dict[int, Mapping[str, frozenset[str]]] = {}
        self._depth = 0
        self._num_looks = 0

    def types(self, schema: Any) -> frozenset[str]:
        if not isinstance(schema, dict):
            return _NOTHING if schema is False else ALL
        if (known := self._types.get(id(schema))) is not None:
            return known
        self._types[id(schema)] = ALL  # what leads back to itself says nothing more by that
        if self._depth < _MAX_DEPTH:
            self._depth += 1
            self._types[id(schema)] = self._read(schema)
            self._depth -= 1
        return self._types[id(schema)]

    def _read(self, schema: Mapping[str, Any]) -> frozenset[str]:
        allowed = ALL
        if stands_alone(schema, self._document.draft):
            return self.types(self._document.target(schema, schema["$ref"]))
        if "type" in schema:
            names = schema["type"]
            allowed &= frozenset(name for named in ([names] if isinstance(names, str) else names) for name in _widened(named))
        if "const" in schema and self._document.draft > 4:
            allowed &= frozenset(types_of_value(schema["const"]))
        if "enum" in schema:
            allowed &= frozenset(name for value in schema["enum"] for name in types_of_value(value))
        for key in ("anyOf", "oneOf"):
            if key in schema:
                allowed &= _NOTHING.union(*map(self.types, schema[key]))
        return allowed & self._all_of([*schema.get("allOf", ()), *self._document.targets(schema)])

    def _all_of(self, schemas: Iterable[Any]) -> frozenset[str]:
        return ALL.intersection(*map(self.types, schemas))

    def properties(self, schema: Any) -> Mapping[str, frozenset[str]]:
        """Types of the properties that `schema` declares, itself or through others that hold for the same object."""
        if not isinstance(schema, dict):
            return {}
        if (known := self._properties.get(id(schema))) is not None:
            return known
        self._properties[id(schema)] = {}  # what leads back to itself declares nothing more by that
        if self._depth < _MAX_DEPTH:
            self._depth += 1
            self._properties[id(schema)] = self._read_properties(schema)
            self._depth -= 1
        return self._properties[id(schema)]

    def _read_properties(self, schema: Mapping[str, Any]) -> dict[str, frozenset[str]]:
        if stands_alone(schema, self._document.draft):
            return dict(self.properties(self._document.target(schema, schema["$ref"])))
        declared = schema.get("properties", {})
        self._look(len(declared))
        found = {key: self.types(inner) for key, inner in declared.items()}
        for part in (*schema.get("allOf", ()), *self._document.targets(schema)):
            properties = self.properties(part)
            self._look(len(properties))
            for key, types in properties.items():
                found[key] = found.get(key, ALL) & types
        for word in ("anyOf", "oneOf"):
            for key, types in self._any_of(schema.get(word, ())).items():
                found[key] = found.get(key, ALL) & types
        return found

    def _any_of(self, branches: Sequence[Any]) -> dict[str, frozenset[str]]:
        """Types of the properties that one of `branches` declares, where any of them may hold."""
        found: dict[str, frozenset[str]] = {}
        num_open: Counter[str] = Counter()  # of the branches that declare the key, those that take others, too
        for branch in branches:
            properties = self.properties(branch)
            self._look(len(properties))
            for key, types in properties.items():
                found[key] = found.get(key, _NOTHING) | types
            if _is_open(branch):
                num_open.update(properties.keys())
        most_open = sum(map(_is_open, branches))
        return {key: types if num_open[key] == most_open else ALL for key, types in found.items()}

    def _look(self, num_properties: int) -> None:
        """Raises `_TooManyError` where the properties of this schema are more than are worth it."""
        self._num_looks += num_properties
        if self._num_looks > _MAX_LOOKS:
            raise _TooManyError


def _is_open(branch: Any) -> bool:
    """Whether `branch` takes properties that it does not name."""
    if not isinstance(branch, dict):
        return branch is not False
    return branch.get("additionalProperties") is not False or bool(branch.get("patternProperties"))


def _widened(name: str) -> tuple[str, ...]:
    return ("number", "integer") if name == "number" else (name,)


def types_of_value(value: Any) -> tuple[str, ...]:
    """The types that a value has: a whole number has two."""
    if isinstance(value, str):
        return ("string",)
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return ("integer", "number")
    if isinstance(value, float):
        return ("number",)
    if value is None:
        return ("null",)
    return ("object",) if isinstance(value, dict) else ("array",)
