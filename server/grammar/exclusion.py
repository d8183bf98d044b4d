"""Whether two schemas can hold at once, as their types, constants and keys tell.

Role: what `oneOf` asks of its branches: where no two can hold, any of them is exactly one of them.
Also told: objects where one must have a key that the other may not have, as unions tagged by a key are written.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from server.grammar.equality import identity


def mark_of(schema: Mapping[str, Any], outer: Any = None) -> dict[str, Any]:
    """What tells a schema from others: its types, the constants of its required properties, and which it needs and allows.

    `outer`: the type, or types, that hold beside a schema that has none of its own.
    """
    kind = schema.get("type", outer)
    properties = schema.get("properties")
    required = schema.get("required")
    constants: dict[str, Any] = {}
    if isinstance(properties, Mapping) and isinstance(required, list):
        for key in required:
            inner = properties.get(key) if isinstance(key, str) else None
            if isinstance(inner, Mapping) and ("const" in inner or isinstance(inner.get("enum"), list)):
                constants[key] = _identities([inner["const"]] if "const" in inner else inner["enum"])
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    own = [schema["const"]] if "const" in schema else schema.get("enum")
    return {
        "types": [kind] if isinstance(kind, str) else kind,
        "constants": constants,
        "needed": {key for key in required if isinstance(key, str)} if isinstance(required, list) else set(),
        "allowed": set(properties if isinstance(properties, Mapping) else ()) if is_closed else None,
        "own": _identities(own) if isinstance(own, list) else None,
    }


def size_of_mark(mark: Mapping[str, Any]) -> int:
    """How many constants and keys it has."""
    keys = len(mark["needed"]) + len(mark["allowed"] or ())
    return keys + len(mark["own"] or ()) + sum(map(len, mark["constants"].values()))


def _identities(values: Sequence[Any]) -> frozenset[Hashable]:
    return frozenset(map(identity, values))


def are_apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether no value satisfies both schemas, as far as their marks tell."""
    if one["types"] and other["types"] and not _numeric(one["types"]) & _numeric(other["types"]):
        return True
    if one["own"] and other["own"] and one["own"].isdisjoint(other["own"]):
        return True
    if ["object"] not in (one["types"], other["types"]):  # what is no object has no keys to tell it by
        return False
    if _lacks(one, other) or _lacks(other, one):
        return True
    return any(
        values.isdisjoint(other["constants"][key]) for key, values in one["constants"].items() if key in other["constants"]
    )


def _lacks(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether an object of the first may not have what one of the other must."""
    return one["allowed"] is not None and not other["needed"] <= one["allowed"]


def _numeric(kinds: Sequence[str]) -> set[str]:
    return {"number" if kind == "integer" else kind for kind in kinds if isinstance(kind, str)}
