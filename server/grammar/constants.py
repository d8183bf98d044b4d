"""Values that a schema lists, with `enum` or `const`.

Role: which of them the rest of the schema allows, and whether they can be written at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from server.grammar import strings
from server.grammar.characters import ANY
from server.grammar.schema import Parts, integer


def kind_of(value: Any) -> str:
    """The type of a JSON value; integers are numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return {str: "string", list: "array"}.get(type(value), "object")


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 is 1.0, and not `true`."""
    if kind_of(one) != kind_of(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(same(left, right) for left, right in zip(one, other, strict=True))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return bool(one == other)


def constants(parts: Parts, kinds: list[str], note: Callable[[str], None]) -> list[Any] | None:
    """The values that `parts` list, without those that their other keywords forbid; None where they list none.

    Objects and arrays are not looked into: what else the schema says about them is noted.
    """
    lists: list[list[Any]] = []
    for part in parts:
        if "const" in part.schema:
            lists.append([part.schema["const"]])
        if isinstance(part.schema.get("enum"), list):
            lists.append(part.schema["enum"])
    if not lists:
        return None
    values = min(lists, key=len)
    for other in lists:
        if other is not values:
            values = [value for value in values if any(same(value, candidate) for candidate in other)]
    text = strings.text(parts, ANY, note)
    found = [value for value in values if _has_kind(value, kinds) and spellable(value) and _admitted(value, parts, text, note)]
    for part in parts:
        if any(isinstance(value, list | Mapping) for value in found):
            for key in (
                "properties",
                "required",
                "items",
                "prefixItems",
                "additionalProperties",
                "patternProperties",
                "minItems",
                "maxItems",
            ):
                if key in part.schema:
                    note(part.below(key))
    return found


def spellable(value: Any) -> bool:
    """Whether all text in `value` can be written: lone surrogates have no UTF-8, and numbers must be finite."""
    if isinstance(value, str):
        return "\0" not in value and not any(0xD800 <= ord(character) <= 0xDFFF for character in value)
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    if isinstance(value, list):
        return all(spellable(item) for item in value)
    if isinstance(value, Mapping):
        return all(spellable(key) and spellable(item) for key, item in value.items())
    return True


def _has_kind(value: Any, kinds: list[str]) -> bool:
    kind = kind_of(value)
    return kind in kinds or (kind == "number" and "integer" in kinds and value == int(value))


def _admitted(value: Any, parts: Parts, text: strings.Text, note: Callable[[str], None]) -> bool:
    if isinstance(value, str):
        return text.automaton.accepts(value) and (text.most_chars is None or len(value) <= text.most_chars)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return True
    number = Decimal(str(value))
    for part in parts:
        for key, fits in (
            ("minimum", lambda bound: number >= bound),
            ("exclusiveMinimum", lambda bound: number > bound),
            ("maximum", lambda bound: number <= bound),
            ("exclusiveMaximum", lambda bound: number < bound),
        ):
            bound = part.schema.get(key)
            if isinstance(bound, int | float) and not isinstance(bound, bool) and not fits(Decimal(str(bound))):
                return False
        if (step := integer(part, "multipleOf", note)) and number % step:
            return False
    return True
