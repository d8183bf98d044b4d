"""Arguments as a model writes them and what a client is to get: rows of tag, text, the schema's types, JSON, recoveries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple


class Value(NamedTuple):
    """`types` None: not known. `expected`: the JSON as text."""

    tag: str | None
    text: str
    types: frozenset[str] | None
    expected: str
    kinds: Sequence[str] = ()


TEXTS = (
    "The fox ",
    "naïve 北京 ",
    "👨‍👩‍👧",
    "e\u0301",
    "\n\n",
    ' "quoted" \\',
    "</think> ",
    "<",
    "<|",
    "12.5",
    "{",
    "\x00\t",
    "<|close|>argument<|sep|>",
    "<|close|>response<|sep|>",
    "<|open|>tools<|sep|>",
    "<|end_of_msg|>",
    "call tool=",
)
ONLY = {name: frozenset({name}) for name in ("string", "integer", "number", "boolean", "null", "object", "array")}
COERCED = ("coerced_value",)
PLAIN = (
    Value("number", "007", None, '"007"', ["invalid_json"]),
    Value("number", "1e5", None, "1e5"),
    Value("number", "-0", None, "-0"),
    Value("number", "3.0", None, "3.0"),
    Value("number", "123456789012345678901234567890", None, "123456789012345678901234567890"),
    Value("boolean", "true", None, "true"),
    Value("boolean", "True", None, "true", ["invalid_json"]),
    Value("null", "null", None, "null"),
    Value("object", '{"a":{"b": [1,2 , "x"]}}', None, '{"a":{"b": [1,2 , "x"]}}'),
    Value("object", '{"a": tru', None, '{"a": "tru"}', ["invalid_json"]),
    Value("object", "{bad", None, '"{bad"', ["invalid_json"]),
    Value("array", '["é", "\\u00e9", []]', None, '["é", "\\u00e9", []]'),
    Value("array", "[1, 2,]", None, "[1, 2]", ["invalid_json"]),
    Value("array", "[]", None, "[]"),
    Value("number", '"3"', None, '"3"', ["wrong_type"]),
    Value("object", "[1]", None, "[1]", ["wrong_type"]),
    Value("any", "[1]", None, "[1]", ["untyped_argument"]),
    Value(None, "plain text", None, '"plain text"', ["untyped_argument"]),
)
TYPED = (
    Value("string", "3", ONLY["integer"], "3", COERCED),
    Value("string", "3.0", ONLY["integer"], '"3.0"'),
    Value("string", "three", ONLY["integer"], '"three"'),
    Value("string", "3", ONLY["string"] | ONLY["integer"], '"3"'),
    Value("string", "false", ONLY["boolean"], "false", COERCED),
    Value("string", '{"a":  1}', ONLY["object"], '{"a":  1}', COERCED),
    Value("string", "[1, 2]", ONLY["array"], "[1, 2]", COERCED),
    Value("string", "[see]", ONLY["array"], '"[see]"'),
    Value("number", "007", ONLY["string"], '"007"', COERCED),
    Value("boolean", "true", ONLY["string"], '"true"', COERCED),
    Value("object", '{"a": "b"}', ONLY["string"], '"{\\"a\\": \\"b\\"}"', COERCED),
    Value("number", "null", ONLY["string"] | ONLY["null"], "null", ["wrong_type"]),
    Value("number", '"3"', ONLY["integer"], "3", COERCED),
    Value("number", "3", ONLY["integer"], "3"),
    Value("null", "null", ONLY["string"], "null"),
)


def draw_value(random: Random, *, typed: bool) -> Value:
    """A value; half of them are strings."""
    if random.random() < 0.5:
        text = "".join(random.choices(TEXTS, k=random.randrange(4)))
        return Value("string", text, None, json.dumps(text, ensure_ascii=False))
    return random.choice(TYPED if typed and random.random() < 0.7 else PLAIN)


def attribute(text: Any) -> str:
    """`text` as it stands in a marker's attribute."""
    return str(text).replace("&", "&amp;").replace('"', "&quot;")
