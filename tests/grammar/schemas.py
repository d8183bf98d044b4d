"""Schemas for the tests of this folder: some chosen, any number made up.

All of them can be held, so that whatever a grammar derives is valid.
"""

from __future__ import annotations

import random
from typing import Any

PATTERNS = (
    "^[a-z]+$",
    "^[A-Z]{2}-\\d{3,5}$",
    "foo|bar",
    "^(?:red|green)[0-9]?$",
    "^\\S+@\\S+\\.\\S+$",
    "[0-9]$",
    "^.{2,5}$",
    "^(?=.*\\d).{4,}$",
)
FORMATS = ("date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "uri", "hostname", "duration")
KEYS = ("a", "city", "städte", "x y", 'q"uote', "a&b", "<|close|>", "[EOS]", "name", "nam", "日本", "$ref", "a.b")
VALUES: tuple[Any, ...] = (
    "",
    "a",
    "<|close|>",
    "[EOS]x",
    'q"',
    "back\\slash\n",
    0,
    1,
    -2.5,
    True,
    False,
    None,
    [],
    [1, "a"],
    {"k": None},
    {},
)


def made_up(rng: random.Random, depth: int = 3) -> Any:
    """A random schema that some value satisfies."""
    kind = rng.choice(
        (
            "string",
            "string",
            "integer",
            "number",
            "boolean",
            "null",
            "enum",
            "const",
            "any",
            "types",
            "anyOf",
            "allOf",
            "object",
            "array",
            "array",
            "object",
        )
    )
    if depth <= 0 and kind in ("object", "array", "anyOf", "allOf", "any"):
        kind = "string"
    match kind:
        case "string":
            return {"type": "string", **_string(rng)}
        case "integer" | "number":
            return {"type": kind, **_number(rng, kind)}
        case "enum":
            return {"enum": rng.sample(VALUES, rng.randint(1, 5))}
        case "const":
            return {"const": rng.choice(VALUES)}
        case "any":
            return rng.choice(({}, True))
        case "types":
            return {"type": rng.sample(["string", "integer", "number", "boolean", "null"], 2)}
        case "anyOf":
            return {"anyOf": [made_up(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
        case "allOf":
            return {"allOf": [made_up(rng, depth - 1), {"description": "anything"}]}
        case "object":
            return made_up_object(rng, depth)
        case "array":
            return _array(rng, depth)
    return {"type": kind}


def made_up_object(rng: random.Random, depth: int = 3, most: int = 8) -> dict[str, Any]:
    """A random schema of objects that some value satisfies."""
    keys = rng.sample(KEYS, rng.randint(0, min(most, len(KEYS))))
    schema: dict[str, Any] = {"type": "object"}
    if keys or rng.random() < 0.5:
        schema["properties"] = {key: made_up(rng, depth - 1) for key in keys}
    if rng.random() < 0.7:
        schema["required"] = rng.sample(keys, rng.randint(0, len(keys)))
    others = rng.choice((None, None, False, True, {"type": "integer"}))
    if others is not None:
        schema["additionalProperties"] = others
    if keys and rng.random() < 0.2:
        schema["maxProperties"] = rng.randint(max(1, len(schema.get("required", ()))), len(keys))
    if keys and others is False and rng.random() < 0.4:
        schema["minProperties"] = rng.randint(0, min(len(keys), schema.get("maxProperties", len(keys))))
    return schema


def _string(rng: random.Random) -> dict[str, Any]:
    match rng.randrange(6):
        case 0:
            return {"minLength": rng.randint(0, 4)}
        case 1:
            return {"maxLength": rng.choice((0, 3, 12, 50))}
        case 2:
            low = rng.randint(0, 5)
            return {"minLength": low, "maxLength": low + rng.randint(0, 9)}
        case 3:
            return {"pattern": rng.choice(PATTERNS)}
        case 4:
            return {"format": rng.choice(FORMATS)}
    return {}


def _number(rng: random.Random, kind: str) -> dict[str, Any]:
    low = rng.randint(-200, 200) if kind == "integer" or rng.random() < 0.5 else rng.randint(-2000, 2000) / 100
    high = low + rng.choice((0, 1, 7, 120)) + (0 if kind == "integer" else 0.5)
    match rng.randrange(5):
        case 0:
            return {"minimum": low}
        case 1:
            return {"maximum": high}
        case 2:
            return {"minimum": low, "maximum": high}
        case 3:
            return {"exclusiveMinimum": low, "exclusiveMaximum": high + 2}
    return {"multipleOf": rng.choice((2, 5, 7))} if kind == "integer" else {}


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    if rng.random() < 0.8:
        schema["items"] = made_up(rng, depth - 1)
    if rng.random() < 0.3:
        schema["prefixItems"] = [made_up(rng, depth - 1) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.3:
            schema["items"] = False
    if rng.random() < 0.4:
        schema["minItems"] = rng.randint(0, 3)
        if schema.get("items") is False:
            schema["minItems"] = min(schema["minItems"], len(schema["prefixItems"]))
    if rng.random() < 0.4:
        schema["maxItems"] = schema.get("minItems", 0) + rng.randint(0, 3)
    return schema


def _object(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required}


TREE = {
    **_object(["value"], value={"type": "integer"}, children={"type": "array", "items": {"$ref": "#/$defs/node"}}),
    "additionalProperties": False,
}

CHOSEN: dict[str, Any] = {
    "nothing": {},
    "empty": {"type": "object", "properties": {}},
    "closed": {"type": "object", "properties": {}, "additionalProperties": False},
    "map": {"type": "object", "additionalProperties": {"type": ["integer", "null"]}},
    "recursive": {"$ref": "#/$defs/node", "$defs": {"node": TREE}},
    "recursive root": _object(["name"], name={"type": "string"}, next={"$ref": "#"}),
    "recursive twice": {
        **_object(["e"], e={"$ref": "#/$defs/e"}),
        "$defs": {
            "e": {"anyOf": [{"type": "number"}, {"$ref": "#/$defs/op"}]},
            "op": _object(op={"enum": ["+", "-"]}, l={"$ref": "#/$defs/e"}, r={"$ref": "#/$defs/e"}),
        },
    },
    "required recursion with an end": _object(t={"$ref": "#/$defs/t"})
    | {"$defs": {"t": _object(["kind", "of"], kind={"const": "list"}, of={"anyOf": [{"$ref": "#/$defs/t"}, {"const": "end"}]})}},
    "definitions": {
        "definitions": {"a b": {"enum": ["x"]}, "c/d": {"$ref": "#/definitions/a%20b"}},
        **_object(k={"$ref": "#/definitions/c~1d"}),
    },
    "deep path": _object(
        a=_object(b={"type": "array", "items": {"type": "boolean"}}), c={"$ref": "#/properties/a/properties/b/items"}
    ),
    "allOf": {
        "allOf": [
            _object(a={"type": "string", "minLength": 2}),
            _object(a={"type": "string", "maxLength": 3}, b={"minimum": 3, "type": "integer"}),
        ]
    },
    "allOf enums": _object(a={"allOf": [{"enum": [1, 2, 3]}, {"enum": [2.0, 3, 4]}, {"maximum": 2}]}),
    "anyOf root": {"anyOf": [_object(a={"type": "string"}), _object(b={"type": "null"})]},
    "anyOf with siblings": _object(a={"type": "string", "anyOf": [{"pattern": "^a"}, {"pattern": "z$"}], "maxLength": 6}),
    "oneOf": _object(a={"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
    "tagged": _object(
        a={
            "oneOf": [
                _object(kind={"const": "dog"}, age={"type": "integer"}),
                _object(kind={"const": "cat"}, lives={"type": "integer", "minimum": 1, "maximum": 9}),
            ]
        }
    ),
    "nullable": _object(
        a={"type": ["string", "null"]}, b={"type": ["object", "null"], "properties": {"x": {"type": "number"}}, "required": ["x"]}
    ),
    "bounds": _object(
        a={"type": "number", "minimum": -1.25, "maximum": 3.5},
        b={"type": "integer", "exclusiveMinimum": 9, "maximum": 1234},
        c={"type": "number", "exclusiveMaximum": -0.001},
    ),
    "multiples": _object(
        a={"type": "integer", "multipleOf": 7, "minimum": 50}, b={"type": "integer", "multipleOf": 25, "maximum": -100}
    ),
    "pattern and length": _object(
        a={"type": "string", "pattern": "^[a-z]*$", "minLength": 3, "maxLength": 5},
        b={"type": "string", "pattern": "\\d", "maxLength": 8},
    ),
    "lookahead": _object(a={"type": "string", "pattern": "^(?=.*[A-Z])(?=.*[0-9])(?!.*\\s).{8,}$"}),
    "formats": _object(**{kind: {"type": "string", "format": kind} for kind in FORMATS}),
    "long": _object(a={"type": "string", "maxLength": 300}, b={"type": "string", "minLength": 1, "maxLength": 2000}),
    "tuple": _object(
        a={
            "type": "array",
            "prefixItems": [{"type": "string"}, {"type": "integer"}],
            "items": {"type": "boolean"},
            "minItems": 1,
            "maxItems": 4,
        }
    ),
    "old tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **_object(
            a={"type": "array", "items": [{"type": "string"}, {"type": "integer"}], "additionalItems": False, "minItems": 2}
        ),
    },
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^n_[a-z]+$": {"type": "integer"}, "_s$": {"type": "string"}},
        "additionalProperties": False,
    },
    "property names": {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z]{2}$"},
        "additionalProperties": {"type": "string"},
        "minProperties": 1,
        "maxProperties": 2,
    },
    "declared and others": {
        **_object(["name"], name={"type": "string"}, nam={"type": "integer"}),
        "additionalProperties": {"type": "boolean"},
    },
    "required but not declared": {"type": "object", "required": ["x"], "properties": {"y": {"type": "string"}}},
    "at least": {
        **_object([], a={"type": "null"}, b={"type": "null"}, c={"type": "null"}),
        "minProperties": 2,
        "additionalProperties": False,
    },
    "many keys": _object(["k3", "k19"], **{f"k{i}": {"type": "integer"} for i in range(20)}),
    "many keys inside": _object(a=_object(["k3", "k19"], **{f"k{i}": {"type": "integer"} for i in range(20)})),
    "many keys counted": {
        **_object(["k3"], **{f"k{i}": {"type": "integer"} for i in range(12)}),
        "minProperties": 3,
        "maxProperties": 5,
        "additionalProperties": False,
    },
    "false property": {**_object(["a"], a={"type": "string"}, b=False)},
    "unicode": _object(größe={"enum": ["äöü", "日本", "🙂"]}, 键={"type": "object", "properties": {"ñ": {"type": "string"}}}),
    "markers": _object(
        **{
            "<|close|>": {"enum": ["<|close|>argument<|sep|>", "[EOS]"]},
            "j": {"enum": [["<|open|>", "[BOS]"], {"<|sep|>": "<|"}]},
        }
    ),
    "long array": _object(a={"type": "array", "items": {"type": "number"}, "minItems": 20, "maxItems": 20}),
}
"""Name -> a schema of arguments."""
