"""What is made to take long leaves its tool well-formed and no more, soon; usual tools beside it are held."""

from __future__ import annotations

import time
from typing import Any

import pytest

from server.grammar.base import Bounds, Shape
from server.grammar.budget import Budget, SpentError
from tests.grammar.conftest import Speaker
from tests.grammar.test_limits import PARAMETERS, tool, with_a

SMALL = Bounds(json_chars=20, items=3, digits=6, calls=2, extra_keys=1, depth=1)
NAMES = range(900)


def _each_refers_to(target: dict[str, Any], **beside: Any) -> dict[str, Any]:
    """Many schemas of their own that all lead to the same large one."""
    properties = {f"k{number}": {"$ref": "#/$defs/e", "title": str(number), **beside} for number in NAMES}
    return {"type": "object", "properties": properties, "$defs": {"e": target}}


def _large_object(letter: str) -> dict[str, Any]:
    return {"type": "object", "properties": {f"{letter}{number}": {} for number in range(3000)}, "additionalProperties": False}


def _inner_names(levels: int) -> dict[str, Any]:
    """Schemas with names of their own inside each other, around one that is long."""
    schema: dict[str, Any] = {"anyOf": [{"type": "string"} for _ in range(20_000)]}
    for level in range(levels):
        schema = {"$id": f"https://example.org/{level}", "items": schema}
    return with_a(schema)


SLOW: dict[str, dict[str, Any]] = {
    "many equal schemas": {
        "type": "object",
        "properties": {f"k{i}": {"type": "array", "prefixItems": [{"type": "string"} for _ in range(300)]} for i in range(500)},
    },
    "many references in circles": {
        "type": "object",
        "properties": {f"k{i}": {"$ref": f"#/$defs/d{i}"} for i in NAMES},
        "$defs": {
            f"d{i}": {"type": "object", "properties": {f"k{j}": {"$ref": f"#/$defs/d{(i * 30 + j) % 900}"} for j in range(30)}}
            for i in NAMES
        },
    },
    "patterns of keys that overlap": {
        "type": "object",
        "patternProperties": {f"^.*{chr(97 + i % 26)}.{{{i % 5}}}x": {"type": "integer", "minimum": i} for i in range(40)},
    },
    "a long list, filtered often": _each_refers_to({"enum": [f"value {number}" for number in range(10_000)]}, maxLength=0),
    "a large object, met often": _each_refers_to(_large_object("a"), allOf=[_large_object("b")]),
    "a long tuple, met often": _each_refers_to({"type": "array", "prefixItems": [{}] * 5000, "maxItems": 0}),
    "lists to tell apart": {
        "type": "object",
        "properties": {f"k{i}": {"oneOf": [{"$ref": f"#/$defs/e{j}"} for j in range(10)]} for i in range(300)},
        "$defs": {f"e{j}": {"enum": [f"{j} {number}" for number in range(2000)], "type": "null"} for j in range(10)},
    },
    "ranges of numbers": {
        "type": "object",
        "properties": {f"k{i}": {"type": "number", "minimum": i * 1.37, "maximum": 10**30 + i} for i in range(2000)},
    },
    "names inside of names": _inner_names(50),
}


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("bounds", [Bounds(), SMALL], ids=["open", "small"])
def test_what_is_made_to_take_long_is_left_to_validation(byte: Speaker, name: str, bounds: Bounds) -> None:
    factory = byte.factory(bounds)
    begin = time.process_time()
    grammar = factory.make(Shape(tools=[tool(SLOW[name]), tool(with_a({"type": "null"}), "g")]))
    took_s = time.process_time() - begin

    assert grammar is not None
    assert (PARAMETERS,) == grammar.unenforced  # and not those of `g`
    assert took_s < 1.5  # some 0.3 on a core of one's own


def test_many_slow_tools_take_no_longer_than_one(byte: Speaker) -> None:
    tools = [tool(schema, f"tool_{number}") for number, schema in enumerate([*SLOW.values()] * 3)]
    begin = time.process_time()
    grammar = byte.grammar(Shape(tools=tools))

    assert len(tools) == len(grammar.unenforced)
    assert time.process_time() - begin < 1.5


def test_a_slow_schema_of_the_answer_is_left_to_validation(byte: Speaker) -> None:
    schema = SLOW["many equal schemas"]
    grammar = byte.grammar(Shape(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}))

    assert ("response_format.json_schema.schema",) == grammar.unenforced


def test_a_pattern_that_met_a_spent_budget_is_held_in_the_next_grammar(byte: Speaker) -> None:
    factory = byte.factory()
    patterns = {f"^[a-f]{{1,40}}x{i}.*z{i}$": {} for i in range(60)}
    together = factory.make(Shape(tools=[tool({"type": "object", "patternProperties": patterns})]))
    assert together is not None
    assert (PARAMETERS,) == together.unenforced

    for pattern in patterns:
        alone = factory.make(Shape(tools=[tool(with_a({"type": "string", "pattern": pattern}))]))
        assert alone is not None
        assert alone.unenforced == ()


def test_a_budget_may_be_overdrawn_without_a_limit_only() -> None:
    budget = Budget(10)
    budget.spend(8)
    budget.allow(5)
    with pytest.raises(SpentError):
        budget.spend(3)
    budget.allow(None)
    budget.spend(100)
    budget.allow(5)
    with pytest.raises(SpentError):
        budget.spend(0)


def test_a_budget_allows_a_part_no_more_than_its_share() -> None:
    budget = Budget(100)
    budget.allow(5)
    budget.spend(5)
    with pytest.raises(SpentError):
        budget.spend(1)
    budget.allow(5)
    budget.spend(5)
