"""Which JSON values are equal.

Role: values that a schema lists are compared by what stands for them in a set: two long lists have too many pairs.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


def kind_of(value: Any) -> str:
    """The type of a JSON value; integers are numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def identity(value: Any) -> Hashable:
    """What is equal for two JSON values exactly where they are: 1 is 1.0, and not `true`."""
    kind = kind_of(value)
    if kind == "array":
        return kind, tuple(map(identity, value))
    if kind == "object":
        return kind, frozenset((key, identity(inner)) for key, inner in value.items())
    return kind, value
