"""Which schemas are refused, and that checking one reaches for nothing outside."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.schemas.check import MAX_PATTERNS, check_parameters, check_schema
from server.schemas.document import MAX_DEPTH
from server.schemas.patterns import is_enforced, is_pattern
from server.schemas.validator import SchemaValidator

DATA = Path(__file__).resolve().parents[1] / "data" / "tool_schemas"
BAD = [case for case in json.loads((DATA / "invalid.json").read_text()) if case["kind"] in ("keyword", "reference")]
GOOD = [case for path in sorted(DATA.glob("*.json")) if path.name != "invalid.json" for case in json.loads(path.read_text())]


def error_of(parameters: Any, param: str = "tools[0].function.parameters") -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        check_parameters(parameters, param)
    return caught.value


@pytest.mark.parametrize("case", BAD, ids=lambda case: case["name"])
def test_a_bad_schema_is_refused_with_the_path_of_the_mistake(case: dict[str, Any]) -> None:
    where = f"tools[0].function.parameters.{case['path']}"
    error = error_of(case["parameters"])

    assert where == error.param
    assert error.message.startswith(f"`{where}` is ")


def test_schemas_of_real_tools_are_taken_and_held() -> None:
    assert len(GOOD) > 150
    for case in GOOD:
        assert SchemaValidator(check_parameters(case["parameters"], "p")).holds, case["name"]


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"type": "object"},
        {"type": ["object", "null"]},
        {"properties": {"a": {}}},
        {"anyOf": [{"type": "object"}, {"type": "null"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
        {"allOf": [{"$ref": "#"}]},
        {"const": {"a": 1}},
    ],
)
def test_parameters_may_describe_an_object_in_any_way(parameters: dict[str, Any]) -> None:
    assert check_parameters(parameters, "p").root == parameters


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"type": "string"}, "p.type"),
        ({"type": ["array", "null"]}, "p.type"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "p"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"enum": [1, "x"]}}}, "p"),
    ],
)
def test_parameters_that_allow_no_object_are_refused(parameters: dict[str, Any], param: str) -> None:
    error = error_of(parameters, "p")

    assert param == error.param
    assert "`object`" in error.message


def test_an_answer_may_be_anything() -> None:
    assert check_schema({"type": "string"}, "s").root == {"type": "string"}
    assert check_schema(True, "s").root is True


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {}}},
        {"properties": {"a": {"$ref": "#/properties/b/anyOf/0"}, "b": {"anyOf": [{}]}}},
        {"properties": {"a": {"$ref": "#there"}}, "$defs": {"b": {"$anchor": "there"}}},
        {"properties": {"a": {"$ref": "b.json"}}, "$defs": {"b": {"$id": "b.json"}}},
        {"properties": {"a": {"$ref": "b.json#/$defs/c"}}, "$defs": {"b": {"$id": "b.json", "$defs": {"c": {}}}}},
        {"$id": "http://example.com/x", "properties": {"a": {"$ref": "http://example.com/x#/$defs/b"}}, "$defs": {"b": {}}},
        {
            "$id": "http://example.com/x/",
            "properties": {"a": {"$ref": "b#/$defs/c"}},
            "$defs": {"b": {"$id": "b", "$defs": {"c": {}}}},
        },
        {"$id": "urn:a:b", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {}}},
        {"properties": {"a": {"$ref": "#/components/schemas/a~1b%25"}}, "components": {"schemas": {"a/b%": {"type": "string"}}}},
        {"properties": {"a": {"$dynamicRef": "#n"}}, "$defs": {"b": {"$dynamicAnchor": "n"}}},
        {"properties": {"$ref": {"type": "string"}}},
        {"enum": [{"$ref": "http://example.com", "type": "nothing"}], "default": {"$ref": 3}, "x-note": {"$ref": "y"}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"b": {"$id": "#there"}},
            "not": {"$ref": "#there"},
        },
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "id": "http://x/y",
            "not": {"$ref": "y#/definitions/z"},
            "definitions": {"z": {}},
        },
    ],
)
def test_references_inside_the_document_are_followed(schema: dict[str, Any]) -> None:
    assert SchemaValidator(check_schema(schema, "s")).holds


def test_what_only_a_reference_leads_to_is_checked_there() -> None:
    error = error_of({"properties": {"a": {"$ref": "#/components/b"}}, "components": {"b": {"type": "text"}}}, "p")

    assert "p.components.b.type" == error.param


def test_a_mistake_behind_many_references_is_found_at_once() -> None:
    references = [{"$ref": "#"}] * 10_000
    schema = {"anyOf": [*references, {"$ref": "#/components/b"}], "components": {"b": {"pattern": "("}}}
    begin = time.process_time()
    error = error_of(json.loads(json.dumps(schema)), "p")
    took_s = time.process_time() - begin

    assert "p.components.b.pattern" == error.param
    assert took_s < 3


@pytest.mark.parametrize(
    "reference", ["http://127.0.0.1:9/x", "https://example.com/s.json#/a", "file:///etc/passwd", "other.json", "http://["]
)
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch, keyword: str, reference: str) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket, "socket", refuse)
    error = error_of({"properties": {"a": {keyword: reference}}}, "p")

    assert f"p.properties.a.{keyword}" == error.param
    assert "nothing is fetched" in error.message or "no such" in error.message


def test_a_reference_must_lead_to_a_schema() -> None:
    assert "p.not.$ref" == error_of({"not": {"$ref": "#/required"}, "required": ["a"]}, "p").param


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


def test_nesting_is_bounded() -> None:
    assert SchemaValidator(check_schema(nested(MAX_DEPTH), "s")).holds
    with pytest.raises(InvalidRequestError, match="fewer levels"):
        check_schema(nested(MAX_DEPTH + 1), "s")


def test_the_number_of_patterns_is_bounded() -> None:
    patterns = {f"p{number}": {"pattern": "^a"} for number in range(MAX_PATTERNS)}

    assert check_parameters({"properties": patterns}, "p").nodes
    assert "p.properties.p999.pattern" == error_of({"patternProperties": {"^b": {}}, "properties": patterns}, "p").param


@pytest.mark.parametrize("pattern", [r"^\d{3}-[a-z]+$", r"^\p{L}+$", r"a|b", r"[\s\S]*", "", r"^[一-龥]+$"])
def test_usual_patterns_are_enforced(pattern: str) -> None:
    assert (True, True) == (is_enforced(pattern), is_pattern(pattern))


@pytest.mark.parametrize(
    "pattern",
    [
        r"^(?!a)b",
        r"(?<=a)b",
        r"(a)\1",
        r"(?<n>a)\k<n>",
        r"^[\w-.]+@[\w-]+$",
        "^{a}$",
        "^[^]+$",
        "a{,3}",
        r"(\w{1000}){1000}",
        r"(\p{L}{1,9}|[a-z]{99})+",
        r"\u{1F600}(?=a)",
    ],
)
def test_patterns_beyond_the_linear_engine_are_taken(pattern: str) -> None:
    assert (False, True) == (is_enforced(pattern), is_pattern(pattern))


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "a)", "(?P<", "\\", "(?!" * 5000])
def test_what_is_no_pattern_to_anyone_is_refused(pattern: str) -> None:
    assert not is_pattern(pattern)
    assert "p.properties.a.pattern" == error_of({"properties": {"a": {"pattern": pattern}}}, "p").param


def test_paths_are_no_longer_than_needed() -> None:
    error = error_of({"properties": {"a" * 100_000: {"properties": {"b" * 100_000: {"type": "x" * 100_000}}}}}, "p")

    assert len(error.message) < 600
