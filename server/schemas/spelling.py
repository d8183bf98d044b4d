"""Schemas of old drafts in words that mean the same in all of them.

Role: what reads schemas need not know the drafts apart. Invariant: the same values fit, but that 1.0 is an integer everywhere;
what is left stands where it stood, so that paths and references stay true.
Source: JSON Schema drafts 4, 6 and 7, and the changes from one to the next.
"""

from __future__ import annotations

from typing import Any, Final

from server.schemas.keywords import KEYWORDS, MAPS, stands_alone

_VALUES: Final = frozenset({"const", "default", "enum", "example", "examples"})
"""Keywords that hold values; what looks like a schema in them is none."""

_SINCE: Final = {
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("$anchor", "$recursiveAnchor", "$recursiveRef", "dependentRequired", "dependentSchemas"), 2019),
    **dict.fromkeys(("maxContains", "minContains", "unevaluatedItems", "unevaluatedProperties"), 2019),
    **dict.fromkeys(("$dynamicAnchor", "$dynamicRef", "prefixItems"), 2020),
}
"""The first draft in which a keyword says anything."""

_BESIDE_REFERENCES: Final = KEYWORDS - {"$ref", "$defs", "definitions"}


def respelled(schema: Any, draft: int) -> Any:
    """A copy of a well-formed schema without what `draft` does not know, exclusive bounds as numbers and `id` as `$id`.

    Raises `RecursionError` for values nested some hundred levels deep.
    """
    if isinstance(schema, list):
        return [respelled(item, draft) for item in schema]
    if not isinstance(schema, dict):
        return schema
    alone = stands_alone(schema, draft)
    copy: dict[str, Any] = {}
    for key, value in schema.items():
        if draft < _SINCE.get(key, 0) or (alone and key in _BESIDE_REFERENCES):
            continue
        if key in MAPS and isinstance(value, dict):
            copy[key] = {name: respelled(inner, draft) for name, inner in value.items()}
        else:
            copy[key] = value if key in _VALUES else respelled(value, draft)
    return _of_draft_4(copy, alone=alone) if draft == 4 else copy


def _of_draft_4(schema: dict[str, Any], *, alone: bool) -> dict[str, Any]:
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(is_open := schema.get(exclusive), bool):
            del schema[exclusive]
            if is_open and bound in schema:
                schema[exclusive] = schema.pop(bound)
    if isinstance(values := schema.get("enum"), list):
        schema["enum"] = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    schema.pop("$id", None)
    if isinstance(schema.get("id"), str):
        name = schema.pop("id")
        if not alone:
            schema["$id"] = name
    return schema
