"""What a keyword may hold, compared with an engine that has the meta-schemas of all drafts."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import pytest

from server.errors import InvalidRequestError
from server.schemas.check import check_schema
from server.schemas.document import Document, SchemaFault

ENGINES = {
    "http://json-schema.org/draft-04/schema#": jsonschema_rs.Draft4Validator,
    "http://json-schema.org/draft-06/schema#": jsonschema_rs.Draft6Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
}
NEWEST = "https://json-schema.org/draft/2020-12/schema"
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2.0, 0.5, -0.5, 10**30, "", "a", "string", "object", "null", [], ["a"], ["a", "a"], ["a", 1],
    ["string", "null"], ["string", "string"], [3], {}, {"a": {}}, {"a": ["b"]}, {"a": ["b", "b"]}, {"a": [1]}, {"a": 1},
    {"a": True}, [{}], [{}, {}], [True], [{"type": "x"}], {"type": "string"}, {"type": "text"}, {"a": {"type": 3}}, "^a+$",
]  # fmt: skip
KEYWORDS = [
    "type", "enum", "required", "properties", "patternProperties", "additionalProperties", "propertyNames", "minProperties",
    "maxProperties", "dependencies", "dependentRequired", "dependentSchemas", "items", "prefixItems", "additionalItems",
    "contains", "minContains", "maxContains", "minItems", "maxItems", "uniqueItems", "unevaluatedItems", "unevaluatedProperties",
    "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "const", "default", "examples", "title", "description", "$comment",
    "$defs", "definitions", "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema", "x-any",
]  # fmt: skip


def schemas(draft: str, num: int, seed: int) -> list[dict[str, Any]]:
    """Schemas of one to three keywords, half of them one level down."""
    chance = random.Random(seed)
    found = []
    for _ in range(num):
        schema = {chance.choice(KEYWORDS): chance.choice(VALUES) for _ in range(chance.randint(1, 3))}
        found.append({"$schema": draft, **(schema if chance.random() < 0.5 else {"not": schema})})
    return found


def is_read_by(engine: Any, schema: dict[str, Any]) -> bool:
    try:
        engine(schema, offline=True)
    except ValueError:
        return False
    return True


def is_taken(schema: dict[str, Any]) -> bool:
    try:
        Document.of(schema)
    except SchemaFault:
        return False
    return True


def quirks(draft: str) -> tuple[str, ...]:
    """What only this draft says of a keyword, and we don't hold anyone to."""
    if "draft-04" in draft:
        return ("enum", "required", "dependencies", "true", "false", "2.0")
    return ("enum", "dependencies") if "draft-06" in draft else ()


@pytest.mark.parametrize("draft", ENGINES)
@pytest.mark.parametrize("num", [1500, pytest.param(60_000, marks=pytest.mark.long)])
def test_what_is_taken_is_what_the_drafts_allow(draft: str, num: int) -> None:
    num_taken = 0
    for schema in schemas(draft, num, seed=num):
        if is_taken(schema):
            num_taken += 1
            assert is_read_by(ENGINES[draft], schema) or any(word in json.dumps(schema) for word in quirks(draft)), schema
        else:
            # Keywords that this draft does not know are held to the form that others give them.
            assert not all(is_read_by(engine, {**schema, "$schema": other}) for other, engine in ENGINES.items()), schema
    assert num / 20 < num_taken < num * 0.9


@pytest.mark.parametrize(
    ("schema", "path", "words"),
    [
        ({"type": "text"}, "type", "one of `string`"),
        ({"type": ["string", "any"]}, "type", "`any`"),
        ({"type": []}, "type", "name a type"),
        ({"properties": {"a": {"items": {"minLength": "3"}}}}, "properties.a.items.minLength", "whole number"),
        ({"anyOf": [{}, {"enum": "x"}]}, "anyOf[1].enum", "a list"),
        ({"required": ["a", 1]}, "required[1]", "a name"),
        ({"$schema": NEWEST, "items": [{}]}, "items", "prefixItems"),
        ({"items": [{}], "not": {"type": "date"}}, "items", "prefixItems"),
        ({"$schema": NEWEST, "exclusiveMinimum": True}, "exclusiveMinimum", "draft 4"),
        ({"exclusiveMinimum": True, "exclusiveMaximum": 3}, "exclusiveMinimum", "draft 4"),
        ({"$schema": NEWEST, "$id": "#there"}, "$id", "$anchor"),
        ({"dependentRequired": {"a": "b"}}, "dependentRequired.a", "list of names"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "$schema", "draft/2020-12"),
        ({"$schema": 3}, "$schema", "text"),
        ({"not": {"$schema": "http://localhost/x"}}, "not.$schema", "draft/2020-12"),
    ],
)
def test_a_mistake_is_named_where_it_is(schema: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_schema(schema, "here")

    assert f"here.{path}" == caught.value.param
    assert f"`here.{path}` is " in caught.value.message
    assert words in caught.value.message
