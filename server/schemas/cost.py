"""How much work a validator would have with a value, before it is given any.

Role: the guard in front of native code, which lets nobody else run: branches that lead to the same place of a recursive schema
multiply with every level of the value, so that a kilobyte of both can take hours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from server.schemas.document import Document

MAX_VISITS: Final = 500_000
"""Of schemas at values; some 20 ms."""

_MAX_PAIRS: Final = 20_000
_MAX_LOOKS: Final = 100_000
"""At schemas and values, true and false and those that were counted before included; some 20 ms."""

_SAME_PLACE: Final = ("not", "if", "then", "else")
_BRANCHES: Final = ("allOf", "anyOf", "oneOf")
_EACH_ELEMENT: Final = ("items", "contains", "additionalItems", "unevaluatedItems")
_EACH_MEMBER: Final = ("additionalProperties", "unevaluatedProperties")


def num_visits(document: Document, value: Any) -> int | None:
    """How many times a schema of `document` would be applied within `value`, at most; None where even counting takes too long."""
    try:
        return _Counter(document).count(document.root, value)
    except (RecursionError, _TooManyError):
        return None


class _TooManyError(Exception):
    """There are more pairs of schema and value than are worth counting."""


class _Counter:
    """Counts each pair of schema and value once, however many ways lead to it."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._counts: dict[tuple[int, int], int] = {}
        self._num_looks = 0

    def count(self, schema: Any, value: Any) -> int:
        self._num_looks += 1
        if self._num_looks > _MAX_LOOKS:
            raise _TooManyError
        if not isinstance(schema, dict):
            return 1
        pair = (id(schema), id(value))
        if (known := self._counts.get(pair)) is not None:
            return known
        if len(self._counts) >= _MAX_PAIRS:
            raise _TooManyError
        self._counts[pair] = 0  # a reference that leads back without a step into the value ends there
        num = 1 + len(schema.get("enum", ()))
        num += sum(self.count(inner, value) for inner in self._same_place(schema))
        if isinstance(value, dict):
            num += len(value) + sum(self.count(inner, member) for inner, member in _members(schema, value))
        elif isinstance(value, list):
            num += len(value) + sum(self.count(inner, element) for inner, element in _elements(schema, value))
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            num *= 2  # asks its neighbours once more what they have seen
        self._counts[pair] = num
        return num

    def _same_place(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        """Schemas that hold for the same value as `schema`."""
        for word in _BRANCHES:
            yield from schema.get(word, ())
        for word in _SAME_PLACE:
            if word in schema:
                yield schema[word]
        for word in ("dependentSchemas", "dependencies"):
            yield from schema.get(word, {}).values()
        yield from self._document.targets(schema)


def _members(schema: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    properties = schema.get("properties", {})
    for key in value if len(value) < len(properties) else properties:
        if key in value and key in properties:
            yield properties[key], value[key]
    for inner in schema.get("patternProperties", {}).values():
        yield from ((inner, member) for member in value.values())
    for word in _EACH_MEMBER:
        if isinstance(inner := schema.get(word), dict):
            yield from ((inner, member) for member in value.values())
    if isinstance(inner := schema.get("propertyNames"), dict):
        yield from ((inner, key) for key in value)


def _elements(schema: Mapping[str, Any], value: list[Any]) -> Iterator[tuple[Any, Any]]:
    for word in ("prefixItems", "items"):
        if isinstance(inner := schema.get(word), list):
            yield from zip(inner, value, strict=False)
    for word in _EACH_ELEMENT:
        if isinstance(inner := schema.get(word), dict):
            yield from ((inner, element) for element in value)
