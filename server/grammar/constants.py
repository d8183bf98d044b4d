"""Values that a schema lists, with `enum` or `const`.

Role: which of them the rest of the schema allows, and whether they can be written at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from server.grammar.budget import Budget
from server.grammar.characters import ANY
from server.grammar.equality import identity, kind_of
from server.grammar.schema import Parts, integer
from server.grammar.strings import Strings

_INNER: Final = (
    *("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"),
    *("items", "prefixItems", "minItems", "maxItems"),
)


def constants(parts: Parts, kinds: list[str], strings: Strings, note: Callable[[str], None], work: Budget) -> list[Any] | None:
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
    work.spend(3 * sum(map(len, lists)))
    values = min(lists, key=len)
    for other in lists:
        if other is not values:
            allowed = set(map(identity, other))
            values = [value for value in values if identity(value) in allowed]
    fits = _Fits(parts, strings, note)
    found = [value for value in values if spellable(value) and _has_kind(value, kinds) and fits(value)]
    for part in parts:
        for key in _INNER if any(isinstance(value, list | Mapping) for value in found) else ():
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


class _Fits:
    """Whether a value fits the keywords of strings and numbers."""

    def __init__(self, parts: Parts, strings: Strings, note: Callable[[str], None]) -> None:
        self._parts = parts
        self._low, self._high = strings.bounds(parts)
        self._pattern = strings.patterns(parts, ANY)
        self._note = note

    def __call__(self, value: Any) -> bool:
        if isinstance(value, str):
            long_enough = self._low <= len(value) and (self._high is None or len(value) <= self._high)
            return long_enough and (self._pattern is None or self._pattern.accepts(value))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self._fits_number(Decimal(str(value)))
        return True

    def _fits_number(self, number: Decimal) -> bool:
        for part in self._parts:
            for key, sign in (("minimum", 1), ("exclusiveMinimum", 1), ("maximum", -1), ("exclusiveMaximum", -1)):
                bound = part.schema.get(key)
                if isinstance(bound, int | float) and not isinstance(bound, bool):
                    over = (number - Decimal(str(bound))) * sign
                    if over < 0 or (over == 0 and key.startswith("exclusive")):
                        return False
            step = integer(part, "multipleOf", self._note)
            if step and (number != number.to_integral_value() or int(number) % step):  # decimals have 28 digits
                return False
        return True
