"""Schemas by chance, and values that are told apart by their types."""

from __future__ import annotations

import random
from typing import Any

VALUES: list[Any] = ["", "a", 0, 1, 2.0, 1.5, True, False, None, [], [1], {}, {"b": 1}]


def random_schema(chance: random.Random, depth: int = 3) -> Any:
    """A schema of at most `depth` levels, with references to `#/$defs/0` to `2`."""
    kinds = ["type", "types", "enum", "const", "anyOf", "oneOf", "allOf", "not", "$ref", "true", "if"]
    kind = chance.choice(kinds if depth else ["type", "enum", "const", "$ref"])
    names = ["string", "integer", "number", "boolean", "null", "object", "array"]
    inner = [random_schema(chance, depth - 1) for _ in range(chance.randint(1, 3))] if depth else []
    return {
        "type": {"type": chance.choice(names)},
        "types": {"type": chance.sample(names, 2)},
        "enum": {"enum": chance.sample(VALUES, 3)},
        "const": {"const": chance.choice(VALUES)},
        "$ref": {"$ref": f"#/$defs/{chance.randint(0, 2)}"},
        "true": True,
        "not": {"not": inner[0] if inner else {}},
        "if": {"if": inner[0] if inner else {}, "then": {"type": "string"}, "type": chance.sample(names, 3)},
        **{word: {word: inner} for word in ("anyOf", "oneOf", "allOf")},
    }[kind]
