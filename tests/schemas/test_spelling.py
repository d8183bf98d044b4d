"""Schemas of old drafts: which draft one is read as, and that it says the same in other words."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import jsonschema_rs
import pytest

from server.schemas.argument_types import argument_types, types_of_value
from server.schemas.check import check_parameters
from server.schemas.document import Document, SchemaFault
from server.schemas.spelling import respelled
from server.schemas.validator import SchemaValidator
from tests.schemas.old_spellings import CHOSEN, made_up_root

VALUES: list[Any] = [None, True, 0, 1, -3, 2.5, 5, 50, "", "x", "?", "abcd", [], [1], [1, 2, 3], ["k", 1.5, 2], [None, "x"], {}]
NEWEST = "https://json-schema.org/draft/2020-12/schema"


def value_of(chance: random.Random, schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments by chance, of which some fit."""
    keys = [key for key in schema["properties"] if key in schema.get("required", ()) or chance.random() < 0.3]
    inner = {key: chance.choice(VALUES) for key in ("a", "b", "items", "const")}
    return {key: chance.choice((*VALUES[:11], inner)) for key in keys}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_schema_is_read_as_the_draft_that_takes_it(name: str) -> None:
    draft, schema = CHOSEN[name]
    document = check_parameters(schema, "p")

    assert draft == document.draft
    assert SchemaValidator(document).holds
    with pytest.raises(SchemaFault):
        Document.of({"$schema": NEWEST, **schema})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#/definitions/a", "type": "string"}}, "definitions": {"a": {}}},
        {"properties": {"a": {"type": "string", "nullable": True}}},
        {"id": "urn:x", "dependencies": {"a": ["b"]}, "additionalItems": False},
        {"properties": {"items": {"type": "array"}, "exclusiveMinimum": {"type": "boolean"}}},
        {"exclusiveMinimum": 3},
    ],
)
def test_what_2020_12_takes_is_read_as_that(schema: dict[str, Any]) -> None:
    assert 2020 == check_parameters(schema, "p").draft


def test_nullable_says_nothing() -> None:
    held = SchemaValidator(check_parameters({"properties": {"a": {"type": "string", "nullable": True}}}, "p"))

    assert held.errors({"a": "x"}) is None
    assert "not of type" in (held.errors({"a": None}) or "")


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("tuple", {"a": ["x", 1, None]}, {"a": ["x", "y"]}),
        ("closed tuple", {"a": [None, "x"]}, {"a": [None, "x", 1]}),
        ("tuple with a rest", {"n": 2, "a": ["k", 1.5, 2]}, {"n": 2, "a": ["k", 1.5, 1]}),
        ("a reference stands alone", {"a": {"x": 1}}, {"a": {"z": 1}}),
        ("exclusive bounds", {"a": 4, "b": -0.5, "c": 2}, {"a": 3, "b": -0.5, "c": 2}),
        ("OpenAPI", {"price": 0.1, "owner": {"id": 1}}, {"price": 0, "owner": {"id": 1}}),
        ("Java", {"from": {}, "to": {"zip": "12345"}}, {"from": {}, "to": {"zip": "123456"}}),
        ("trifles of draft 4", {"a": 3, "b": 1, "c": "xy"}, {"a": 2}),
    ],
)
def test_values_are_held_to_old_spellings(name: str, good: dict[str, Any], bad: dict[str, Any]) -> None:
    held = SchemaValidator(check_parameters(CHOSEN[name][1], "p"))

    assert held.errors(good) is None
    assert held.errors(bad) is not None


@pytest.mark.parametrize("draft", [4, 7])
def test_other_words_say_the_same(draft: int) -> None:
    engine = {4: jsonschema_rs.Draft4Validator, 7: jsonschema_rs.Draft7Validator}[draft]
    chance = random.Random(draft)
    outcomes = {True: 0, False: 0}
    for _ in range(200):
        schema = made_up_root(chance, draft)
        before = copy.deepcopy(schema)
        other = jsonschema_rs.Draft7Validator(respelled(schema, draft))
        types = argument_types(Document.of(schema))
        assert before == schema
        for _ in range(10):
            value = value_of(chance, schema)
            fits = engine(schema).is_valid(value)
            outcomes[fits] += 1
            assert fits == other.is_valid(value), (json.dumps(schema), value)
            for key in value if fits else ():
                assert key not in types or types[key] & set(types_of_value(value[key])), (schema, value)
    assert min(outcomes.values()) > 100
    assert draft == Document.of(schema).draft


def test_names_and_values_that_look_like_keywords_stay() -> None:
    schema = {
        "properties": {"const": {"const": 1, "type": "integer"}, "id": {"enum": [{"id": "x", "const": 3}]}},
        "default": {"exclusiveMinimum": True},
        "components": {"a": {"id": "#b", "minimum": 1, "exclusiveMinimum": True}},
    }

    assert {
        "properties": {"const": {"type": "integer"}, "id": {"enum": [{"id": "x", "const": 3}]}},
        "default": {"exclusiveMinimum": True},
        "components": {"a": {"$id": "#b", "exclusiveMinimum": 1}},
    } == respelled(schema, 4)
