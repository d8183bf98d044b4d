"""Whether a value fits, and that asking never takes long."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import jsonschema_rs
import pytest

from server.schemas.check import check_schema
from server.schemas.cost import MAX_VISITS, num_visits
from server.schemas.document import Document
from server.schemas.validator import MAX_HELD_PATTERNS, MAX_SUBSCHEMAS, SchemaValidator
from tests.schemas.random_schemas import VALUES, random_schema


def validator(schema: Any) -> SchemaValidator:
    return SchemaValidator(check_schema(schema, "s"))


@pytest.mark.parametrize(
    ("schema", "text", "words"),
    [
        ({"required": ["a"]}, '{"a": 1}', None),
        ({"required": ["a"]}, "{}", '"a" is a required property'),
        ({"properties": {"a": {"items": {"type": "string"}}}}, '{"a": ["x", 3]}', "`a[1]`: 3 is not of type"),
        ({"properties": {"a": {"maximum": 3}}}, '{"a": 3.5}', "`a`: 3.5 is greater than"),
        ({"type": "integer"}, "3.0", None),
        ({"pattern": "^a+$"}, '"ab"', "does not match"),
        ({"pattern": "^(?!a)b$"}, '"ab"', None),
        ({"pattern": "^(?!a)b$", "maxLength": 1}, '"ab"', "longer than 1"),
        ({"patternProperties": {"^(?!a)": {}}, "additionalProperties": False}, '{"abc": 1}', None),
        ({"format": "email"}, '"nobody"', None),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "format": "email"}, '"nobody"', None),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "null"}]}, "[1]", "not of type"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True}, "1", "less than"),
        ({"$ref": "#"}, "1", None),
        ({"allOf": [{"$ref": "#"}]}, "1", None),
        ({}, "{", "not JSON"),
        ({}, '"\\ud800"', "not JSON"),
        (True, "1", None),
        (False, "1", "False schema"),
        ({"type": "integer"}, "123456789012345678901234567890", None),
        ({"type": "number"}, "1e400", None),
        ({"uniqueItems": True}, "[1, 1.0]", "non-unique"),
    ],
)
def test_values_are_held_to_the_schema(schema: Any, text: str, words: str | None) -> None:
    error = validator(schema).errors_in(text)

    assert (words is None) == (error is None), error
    assert (words or "") in (error or "")


def test_an_error_is_short() -> None:
    schema = {"additionalProperties": {"enum": ["x" * 100_000]}}

    assert len(validator(schema).errors_in(json.dumps({"k" * 100_000: "y" * 100_000})) or "") < 500


@pytest.mark.parametrize("num", [200, pytest.param(10_000, marks=pytest.mark.long)])
def test_it_agrees_with_the_engine_itself(num: int) -> None:
    chance = random.Random(num)
    outcomes = {True: 0, False: 0}
    for _ in range(num):
        schema = {"properties": {"a": random_schema(chance)}, "$defs": {str(n): random_schema(chance, 1) for n in range(3)}}
        engine = jsonschema_rs.Draft202012Validator(schema)
        ours = validator(schema)
        for value in VALUES:
            fits = engine.is_valid({"a": value})
            outcomes[fits] += 1
            assert fits == (ours.errors_in(json.dumps({"a": value})) is None), (schema, value)
    assert min(outcomes.values()) > num


def test_a_schema_too_large_to_prepare_holds_nothing() -> None:
    within = {"properties": {f"p{number}": {"type": "null"} for number in range(MAX_SUBSCHEMAS - 1)}}
    beyond = {"properties": {f"p{number}": {"type": "null"} for number in range(MAX_SUBSCHEMAS)}}

    assert "not of type" in (validator(within).errors_in('{"p7": 1}') or "")
    assert validator(beyond).errors_in('{"p7": 1}') is None
    assert not validator(beyond).holds


@pytest.mark.parametrize("draft", ["http://json-schema.org/draft-04/schema#", "https://json-schema.org/draft/2020-12/schema"])
def test_remarks_nested_too_deep_to_be_copied_hold_nothing(draft: str) -> None:
    remark: list[Any] = []
    for _ in range(900):
        remark = [remark]
    schema = {"$schema": draft, "required": [], "properties": {"a": {"pattern": "(?=a)"}}, "x": remark}

    assert validator(schema).errors({"a": 1}) is None


def test_more_patterns_than_can_be_prepared_hold_nothing() -> None:
    patterns = {f"p{number}": {"pattern": f"^{number}"} for number in range(MAX_HELD_PATTERNS)}

    assert "does not match" in (validator({"properties": patterns}).errors_in('{"p7": "x"}') or "")
    assert not validator({"properties": patterns, "pattern": "^a"}).holds


BRANCHING = {
    "anyOf": [
        {"properties": {"a": {"$ref": "#"}, "z": {"type": "string"}}, "required": ["z"]},
        {"properties": {"a": {"$ref": "#"}}, "required": ["y"]},
    ]
}


def chain(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def test_branches_that_multiply_are_counted_before_they_are_tried() -> None:
    """The engine's own explanation of 20 levels takes minutes, and of 60 for ever."""
    held = validator(BRANCHING)

    assert "does not fit" in (held.errors(chain(15)) or "")
    assert held.errors(chain(60)) is None


def test_references_that_multiply_are_counted_before_they_are_tried() -> None:
    defs: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 4} for n in range(30)}
    held = validator({"$ref": "#/$defs/d0", "$defs": {**defs, "d30": {"type": "integer"}}})

    assert held.errors("x") is None


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}}}, {"a": "x"}),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"next": {"$ref": "#/$defs/a"}}}}}, {"next": {"next": {}}}),
        ({"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, ["a"] * 100),
    ],
)
def test_usual_values_are_far_from_the_bound(schema: Any, value: Any) -> None:
    visits = num_visits(Document.of(schema), value)

    assert visits is not None
    assert 0 < visits < MAX_VISITS / 100


def test_what_is_too_large_to_count_counts_as_fitting() -> None:
    assert validator({"items": {"type": "string"}}).errors(list(range(1000, 100_000))) is None


@pytest.mark.parametrize(
    "schema",
    [{"properties": {f"k{number}": True for number in range(20_000)}}, {"anyOf": [True] * 20_000}],
    ids=["keys", "branches"],
)
def test_many_schemas_at_many_values_are_not_all_counted(schema: dict[str, Any]) -> None:
    document = Document.of({"items": schema})
    begin = time.process_time()
    num_visits(document, [{"a": number} for number in range(2_000)])
    took_s = time.process_time() - begin

    assert took_s < 1


def test_long_texts_are_not_matched_with_many_patterns() -> None:
    held = validator({"allOf": [{"pattern": f"^a{number}"} for number in range(50)]})

    assert "does not match" in (held.errors_in('"b"') or "")
    assert held.errors_in('"' + "b" * 500_000 + '"') is None
