"""Schemas as generators of older drafts write them, without `$schema`: some chosen, any number made up."""

from __future__ import annotations

import random
from typing import Any

CHOSEN: dict[str, tuple[int, dict[str, Any]]] = {
    "tuple": (7, {"properties": {"a": {"type": "array", "items": [{"type": "string"}, {"type": "integer"}], "minItems": 1}}}),
    "closed tuple": (
        7,
        {"properties": {"a": {"type": "array", "items": [{"type": "null"}, {"enum": ["x", "y"]}], "additionalItems": False}}},
    ),
    "tuple with a rest": (
        7,
        {
            "properties": {
                "a": {"type": "array", "items": [{"const": "k"}], "additionalItems": {"$ref": "#/definitions/n"}, "minItems": 3},
                "n": {"$ref": "#/definitions/n", "type": "string"},
            },
            "required": ["n"],
            "definitions": {"n": {"type": "number", "exclusiveMinimum": 1, "maximum": 2}},
        },
    ),
    "a reference stands alone": (
        7,
        {
            "properties": {"a": {"$ref": "#/definitions/p", "type": "string", "properties": {"z": {}}}, "t": {"items": [{}]}},
            "required": ["a"],
            "definitions": {"p": {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": False}},
        },
    ),
    "words of later drafts": (
        7,
        {
            "properties": {
                "a": {"type": "array", "items": {"type": "integer"}, "prefixItems": [{"type": "string"}], "minItems": 2},
                "b": {"items": [{"unevaluatedItems": False, "dependentRequired": {"a": ["b"]}, "type": "object"}]},
            },
            "required": ["a"],
        },
    ),
    "a named place": (
        7,
        {
            "properties": {"a": {"items": [{"$ref": "#there"}], "minItems": 1, "type": "array"}},
            "required": ["a"],
            "definitions": {"x": {"$id": "#there", "type": "boolean"}},
        },
    ),
    "exclusive bounds": (
        4,
        {
            "properties": {
                "a": {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 6, "exclusiveMaximum": True},
                "b": {"type": "number", "minimum": -0.5, "exclusiveMinimum": False, "maximum": 0, "exclusiveMaximum": True},
                "c": {"enum": [1, 2, 3], "maximum": 3, "exclusiveMaximum": True},
                "d": {"type": "array", "items": [{"type": "integer", "exclusiveMinimum": True, "minimum": 0}]},
            },
            "required": ["a", "b", "c"],
        },
    ),
    "whole numbers": (
        4,
        {
            "properties": {"a": {"type": "integer", "enum": [2.0, 3]}, "b": {"minimum": 0, "exclusiveMinimum": True}},
            "required": ["a"],
        },
    ),
    "OpenAPI": (
        4,
        {
            "type": "object",
            "properties": {
                "price": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "nullable": True, "example": 1.5},
                "name": {"type": "string", "nullable": True, "format": "byte", "xml": {"name": "n"}},
                "owner": {"$ref": "#/components/schemas/Owner", "nullable": True},
            },
            "required": ["price", "owner"],
            "components": {
                "schemas": {"Owner": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}}
            },
        },
    ),
    "Java": (
        4,
        {
            "type": "object",
            "id": "urn:jsonschema:com:example:Order",
            "properties": {
                "from": {
                    "type": "object",
                    "id": "urn:jsonschema:com:example:Place",
                    "properties": {"zip": {"type": "string", "maxLength": 5}},
                },
                "to": {"$ref": "urn:jsonschema:com:example:Place"},
            },
            "required": ["from"],
        },
    ),
    "trifles of draft 4": (
        4,
        {
            "properties": {"a": {"type": "integer", "minimum": 2, "exclusiveMinimum": True}, "b": True, "c": {"minLength": 2.0}},
            "required": [],
            "dependencies": {"a": []},
        },
    ),
    "words unknown to draft 4": (
        4,
        {
            "properties": {
                "a": {"const": 1, "minimum": 1, "exclusiveMinimum": True, "type": "integer"},
                "b": {
                    "oneOf": [
                        {"type": "object", "required": ["k"], "properties": {"k": {"const": "x", "type": "string"}}},
                        {"type": "object", "required": ["j"], "properties": {"j": {"type": "null"}}},
                    ]
                },
            },
            "required": ["a"],
        },
    ),
}
"""Name -> the draft that a schema of arguments is read as, and the schema."""


def made_up(rng: random.Random, draft: int, depth: int = 2) -> dict[str, Any]:
    """A random schema in the words of draft 4 or 7, which some value satisfies, referring to `#/definitions/d`."""
    kind = rng.choice(("number", "integer", "string", "$ref", *(("tuple", "array", "object", "anyOf") if depth else ())))
    match kind:
        case "number" | "integer":
            return {"type": kind, **_bounds(rng, draft)}
        case "string":
            return {"type": "string", "maxLength": rng.randint(0, 5)}
        case "$ref":
            beside = rng.choice(
                ({}, {"type": "boolean"}, {"enum": ["?"]}, {"properties": {"a": {"type": "null"}}}, {"nullable": True})
            )
            return {"$ref": "#/definitions/d", **beside}
        case "tuple":
            schema = {"type": "array", "items": [made_up(rng, draft, depth - 1) for _ in range(rng.randint(1, 3))]}
            schema["minItems"] = rng.randint(0, len(schema["items"]))
            rest = rng.choice((None, True, False, made_up(rng, draft, 0)))
            return schema if rest is None else {**schema, "additionalItems": rest}
        case "array":
            later = {"prefixItems": [{"type": "null"}]} if rng.random() < 0.3 else {"additionalItems": False}
            return {"type": "array", "items": made_up(rng, draft, depth - 1), "minItems": rng.randint(0, 2), **later}
        case "object":
            return made_up_object(rng, draft, depth - 1)
    return {"anyOf": [made_up(rng, draft, depth - 1) for _ in range(rng.randint(1, 3))]}


def made_up_object(rng: random.Random, draft: int, depth: int = 2) -> dict[str, Any]:
    """As `made_up`, of objects."""
    keys = rng.sample(("a", "b", "items", "const"), rng.randint(1, 3))
    return {
        "type": "object",
        "properties": {key: made_up(rng, draft, depth) for key in keys},
        "required": rng.sample(keys, rng.randint(1, len(keys))),
    }


def made_up_root(rng: random.Random, draft: int) -> dict[str, Any]:
    """As `made_up_object`, with what it refers to, so spelled that it is read as `draft`."""
    schema = made_up_object(rng, draft)
    mark = {"items": [{"type": "string"}]} if draft == 7 else {"minimum": 1, "exclusiveMinimum": True}
    schema["properties"]["mark"] = mark
    return {**schema, "definitions": {"d": made_up(rng, draft, 0) if rng.random() < 0.5 else {"type": "integer"}}}


def _bounds(rng: random.Random, draft: int) -> dict[str, Any]:
    low, high = rng.randint(-9, 0), rng.randint(2, 99)
    if draft == 7:
        return rng.choice(({}, {"exclusiveMinimum": low, "maximum": high}, {"exclusiveMaximum": high}))
    exclusive = {"exclusiveMinimum": rng.random() < 0.7, "exclusiveMaximum": rng.random() < 0.7}
    return {"minimum": low, "maximum": high, **exclusive}
