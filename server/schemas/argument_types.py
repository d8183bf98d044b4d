"""Which types of JSON a schema allows for the arguments of a tool.

Role: what a parser may rely on when the model's own type tag does not fit. Invariant: a superset; a type that is missing here is
one that the schema does not allow, so nothing that fits is ever turned into something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from server.schemas.document import Document
from server.schemas.keywords import TYPES, stands_alone

ALL: Final = frozenset(TYPES)
_NOTHING: Final[frozenset[str]] = frozenset()
_MAX_DEPTH: Final = 64


def argument_types(document: Document) -> Mapping[str, frozenset[str]]:
    """Types of each declared property of the arguments; a property is left out where anything goes, or nothing.

    `number` comes with `integer`, which is a number, too; a property of integers has `integer` alone.
    """
    reader = _TypeReader(document)
    types = reader.properties(document.root)
    return {key: allowed for key, allowed in types.items() if allowed and allowed != ALL}


def root_types(document: Document) -> frozenset[str]:
    """Types of the whole value."""
    return _TypeReader(document).types(document.root)


class _TypeReader:
    """Reads one document; each schema in it once, however often references lead to it."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._types: dict[int, frozenset[str]] = {}
        self._properties: dict[int, Mapping[str, frozenset[str]]] = {}
        self._depth = 0

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
        found = {key: self.types(inner) for key, inner in schema.get("properties", {}).items()}
        for part in (*schema.get("allOf", ()), *self._document.targets(schema)):
            for key, types in self.properties(part).items():
                found[key] = found.get(key, ALL) & types
        for word in ("anyOf", "oneOf"):
            branches = [(self.properties(branch), _undeclared(branch)) for branch in schema.get(word, ())]
            for key in {key for declared, _ in branches for key in declared}:
                types = _NOTHING.union(*(declared.get(key, otherwise) for declared, otherwise in branches))
                found[key] = found.get(key, ALL) & types
        return found


def _undeclared(branch: Any) -> frozenset[str]:
    """Types of a property that `branch` does not name."""
    if not isinstance(branch, dict):
        return _NOTHING if branch is False else ALL
    return _NOTHING if branch.get("additionalProperties") is False and not branch.get("patternProperties") else ALL


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
