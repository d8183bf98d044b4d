"""Which types of JSON the arguments of a tool may have."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from server.schemas.argument_types import argument_types, root_types, types_of_value
from server.schemas.check import check_schema
from server.schemas.document import Document
from server.schemas.validator import SchemaValidator
from tests.schemas.random_schemas import VALUES, random_schema

NUMBER = frozenset({"number", "integer"})
STRING = frozenset({"string"})
NULL = frozenset({"null"})
INTEGER = frozenset({"integer"})
DEFS = {
    "id": {"type": "integer"},
    "node": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
    "loop": {"$ref": "#/$defs/loop"},
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, STRING),
        ({"type": "integer"}, INTEGER),
        ({"type": "number"}, NUMBER),
        ({"type": ["string", "null"]}, STRING | NULL),
        ({"enum": ["a", 3, None]}, STRING | NULL | NUMBER),
        ({"type": "integer", "enum": [1, 2]}, INTEGER),
        ({"const": 1.5}, {"number"}),
        ({"const": 2.0}, NUMBER),
        ({"const": True}, {"boolean"}),
        ({"enum": [{}, []]}, {"object", "array"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, STRING | NULL),
        ({"oneOf": [{"type": "number"}, {"const": "auto"}]}, NUMBER | STRING),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, INTEGER),
        ({"type": "number", "allOf": [{"type": "integer"}]}, INTEGER),
        ({"$ref": "#/$defs/id"}, INTEGER),
        ({"$ref": "#/$defs/id", "type": ["integer", "string"]}, INTEGER),
        ({"$ref": "#/$defs/loop"}, None),
        ({"$ref": "#/$defs/node"}, None),  # a superset: what leads back to itself says nothing
        ({}, None),
        (True, None),
        (False, None),
        ({"type": "string", "enum": [3]}, None),
        ({"not": {"type": "string"}}, None),
        ({"anyOf": [{"type": "string"}, {}]}, None),
    ],
)
def test_types_of_a_property(schema: Any, types: set[str] | None) -> None:
    document = check_schema({"type": "object", "properties": {"a": schema}, "$defs": DEFS}, "s")

    assert ({} if types is None else {"a": types}) == argument_types(document)


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"$ref": "#/$defs/in", "$defs": {"in": {"properties": {"a": {"type": "string"}}}}}, {"a": STRING}),
        (
            {"allOf": [{"properties": {"a": {"type": ["string", "null"]}}}, {"properties": {"a": {"type": "string"}}}]},
            {"a": STRING},
        ),
        ({"anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"a": {"type": "null"}}}]}, {"a": STRING | NULL}),
        ({"anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {}}]}, {}),
        ({"anyOf": [{"properties": {"a": {"type": "string"}}}, {"additionalProperties": False}]}, {"a": STRING}),
        ({"oneOf": [{"properties": {"a": {"type": "string"}}}, False]}, {"a": STRING}),
        ({"allOf": [{"$ref": "#"}], "properties": {"a": {"type": "string"}}}, {"a": STRING}),
        (True, {}),
    ],
)
def test_properties_are_found_where_they_hold(schema: Any, types: dict[str, frozenset[str]]) -> None:
    assert types == argument_types(check_schema(schema, "s"))


def test_in_old_drafts_a_reference_stands_alone() -> None:
    both = {"$ref": "#/definitions/a", "type": "string"}
    schema = {"properties": {"p": both}, "definitions": {"a": {"type": ["string", "null"]}}}

    assert {"p": STRING | NULL} == argument_types(
        check_schema({"$schema": "http://json-schema.org/draft-07/schema#", **schema}, "s")
    )
    assert {"p": STRING} == argument_types(check_schema(schema, "s"))


@pytest.mark.parametrize("num", [300, pytest.param(20_000, marks=pytest.mark.long)])
def test_no_type_of_a_fitting_value_is_ever_missing(num: int) -> None:
    chance = random.Random(num)
    num_fitting = num_narrow = 0
    for _ in range(num):
        defs = {str(number): random_schema(chance, 1) for number in range(3)}
        schema = {"properties": {"a": random_schema(chance)}, "$defs": defs}
        document = Document.of(schema)
        validator = SchemaValidator(document)
        types = argument_types(document).get("a")
        num_narrow += types is not None
        for value in VALUES:
            if validator.errors({"a": value}) is None and types is not None:
                num_fitting += 1
                assert types & set(types_of_value(value)), (schema, value)
    assert num_fitting > num
    assert num_narrow > num / 3


def test_references_that_branch_are_read_once() -> None:
    defs: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 4} for n in range(40)}
    defs["d40"] = {"type": "object", "properties": {"a": {"type": "string"}}}
    document = check_schema({"$ref": "#/$defs/d0", "$defs": defs}, "s")

    assert "string" not in root_types(check_schema({"type": "object"}, "s"))
    assert set(argument_types(document)) <= {"a"}


@pytest.mark.parametrize("word", ["anyOf", "allOf"])
def test_branches_with_many_properties_take_bounded_time(word: str) -> None:
    branches = [{"properties": {f"k{number}_{index}": True for index in range(40)}} for number in range(700)]
    document = check_schema({word: branches, "properties": {"a": {"type": "string"}}}, "s")
    begin = time.process_time()
    types = argument_types(document)
    took_s = time.process_time() - begin

    assert set(types) <= {"a"}
    assert took_s < 0.5


def test_a_property_of_one_branch_may_be_anything_where_another_takes_others() -> None:
    closed = {"properties": {"a": {"type": "string"}}, "additionalProperties": False}
    other = {"properties": {"a": {"type": "integer"}, "b": {"type": "null"}}}

    assert {"a": frozenset({"string", "integer"})} | {"b": frozenset({"null"})} == argument_types(
        check_schema({"anyOf": [closed, other]}, "s")
    )
    assert {"a": frozenset({"string", "integer"})} == argument_types(
        check_schema({"anyOf": [closed, other, {**other, "properties": {"a": {"type": "string"}}}]}, "s")
    )
