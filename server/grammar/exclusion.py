"""Whether two schemas can hold at once, as their types and constants tell.

Role: what `oneOf` asks of its branches: where no two can hold, any of them is exactly one of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from server.grammar.equality import identity


def mark_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a schema from others: its types, and the constants of its required properties."""
    kind = schema.get("type")
    properties = schema.get("properties")
    required = schema.get("required")
    constants: dict[str, Any] = {}
    if isinstance(properties, Mapping) and isinstance(required, list):
        for key in required:
            inner = properties.get(key) if isinstance(key, str) else None
            if isinstance(inner, Mapping) and ("const" in inner or isinstance(inner.get("enum"), list)):
                constants[key] = _identities([inner["const"]] if "const" in inner else inner["enum"])
    own = [schema["const"]] if "const" in schema else schema.get("enum")
    return {
        "types": [kind] if isinstance(kind, str) else kind,
        "constants": constants,
        "own": _identities(own) if isinstance(own, list) else None,
    }


def size_of_mark(mark: Mapping[str, Any]) -> int:
    """How many constants it has."""
    return len(mark["own"] or ()) + sum(map(len, mark["constants"].values()))


def _identities(values: Sequence[Any]) -> frozenset[Hashable]:
    return frozenset(map(identity, values))


def are_apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether no value satisfies both schemas, as far as their marks tell."""
    if one["types"] and other["types"] and not _numeric(one["types"]) & _numeric(other["types"]):
        return True
    if one["own"] and other["own"] and one["own"].isdisjoint(other["own"]):
        return True
    return any(
        values.isdisjoint(other["constants"][key]) for key, values in one["constants"].items() if key in other["constants"]
    )


def _numeric(kinds: Sequence[str]) -> set[str]:
    return {"number" if kind == "integer" else kind for kind in kinds if isinstance(kind, str)}
