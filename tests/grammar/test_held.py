"""What is held whole: nothing is left to a check afterwards, which can only tell that a model was wrong."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import jsonschema_rs
import pytest

from bench.tool_schemas import NAMES, load
from server.engine.profiles import load_profile
from server.grammar.base import Bounds, Shape
from server.grammar.exclusion import are_apart, mark_of
from tests.grammar.conftest import Speaker
from tests.grammar.test_rejections import EngineOf, one, tool

S = "string"
BOUNDS = {"bounded": Bounds.read(load_profile("cpu-demo").answer_bounds), "not bounded": Bounds()}
LEFT = {("pattern_classes", "not bounded"): ("tools[0].function.parameters.properties.gap.maxLength",)}
"""Lengths beside a pattern in which any character may come at two places."""


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("name", NAMES)
def test_schemas_of_usual_tools_are_held(byte: Speaker, name: str, bounds: str) -> None:
    left = {
        (case.name, bounds): unenforced
        for case in load([name])
        if (unenforced := byte.grammar(Shape(tools=[tool(case.parameters)]), BOUNDS[bounds]).unenforced)
    }
    assert {key: paths for key, paths in LEFT.items() if key in left} == left


@pytest.mark.vllm
@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 1), (0, 72), (3, 72), (0, 256), (1, 256), (64, 256)])
def test_texts_are_as_long_as_they_may_be(byte: Speaker, engine_of: EngineOf, low: int, high: int) -> None:
    schema = {"type": "string", "minLength": low, "maxLength": high}
    grammar, engine = byte.grammar(Shape(tools=[one(schema)])), engine_of(byte)
    for length in (low, high):
        assert engine.accepts(grammar, byte.guarded([("a", S, "é" * length)]))
    for length in {low - 1, high + 1} - {-1}:
        assert not engine.accepts(grammar, byte.guarded([("a", S, "é" * length)]))


@pytest.mark.parametrize("high", [0, 5, 72, 96, 97, 300, 100_000])
@pytest.mark.parametrize("low", [0, 1, 3])
def test_small_models_keep_to_any_longest_length(byte: Speaker, low: int, high: int) -> None:
    schema = {"type": "string", "minLength": min(low, high), "maxLength": high}
    for inner in (schema, {"type": "array", "items": schema}):
        assert () == byte.grammar(Shape(tools=[one(inner)]), BOUNDS["bounded"]).unenforced


def branches() -> list[dict[str, Any]]:
    of: dict[str, Any] = {"type": "object"}
    keys = [{"properties": {key: {}}, "required": [key]} for key in "ab"]
    return [
        *({**of, **each, "additionalProperties": False} for each in keys),
        *({**of, **each} for each in keys),
        *({**of, "properties": each["properties"], "additionalProperties": False} for each in keys),
        {**of, "properties": {"a": {}, "b": {}}, "required": ["b"], "additionalProperties": False},
        {**of, "required": ["b"], "patternProperties": {"^a": {}}, "additionalProperties": False},
        {**of, "patternProperties": {"b": {}}, "additionalProperties": False},
        {"type": ["object", "string"], "required": ["b"]},
        {"required": ["a"]},
        {**of, "required": ["a", "b"], "additionalProperties": True},
        *({**kind, "properties": {"a": {"const": a}}, "required": ["a"]} for kind in ({}, of) for a in (None, 1)),
        {"type": ["object", "string"], "properties": {"a": {"enum": [1]}}, "required": ["a"]},
    ]


VALUES: list[Any] = ["", *(dict.fromkeys(keys) for size in range(4) for keys in combinations("abc", size))]


def test_branches_that_are_told_apart_share_no_value() -> None:
    apart = [(one, other) for one, other in product(branches(), repeat=2) if are_apart(mark_of(one), mark_of(other))]
    assert len(apart) >= 10
    for pair in apart:
        one, other = (jsonschema_rs.validator_for(schema) for schema in pair)
        assert [] == [value for value in VALUES if one.is_valid(value) and other.is_valid(value)], pair


@pytest.mark.parametrize(("kind", "is_held"), [("object", True), (["object", "string"], False), (None, False)])
def test_constants_of_keys_tell_nothing_but_objects_apart(byte: Speaker, kind: Any, is_held: bool) -> None:
    tagged = [{"properties": {"kind": {"const": value}}, "required": ["kind"]} for value in ("dog", "cat")]
    for typed, outer in ((tagged, kind), ([{**each, "type": kind} for each in tagged], None)):
        union = {"oneOf": [{key: value for key, value in each.items() if value is not None} for each in typed]}
        schema = {**union, "type": outer} if outer else union
        unenforced = byte.grammar(Shape(tools=[one(schema)])).unenforced
        assert unenforced == (() if is_held else ("tools[0].function.parameters.properties.a.oneOf",)), schema


@pytest.mark.vllm
def test_a_union_tagged_by_its_key_is_held(byte: Speaker, engine_of: EngineOf) -> None:
    closed = {"type": "object", "additionalProperties": False}
    union = {"oneOf": [{**closed, "properties": {key: {"type": "null"}}, "required": [key]} for key in ("branch", "commit")]}
    grammar = byte.grammar(Shape(tools=[one(union)]))
    assert () == grammar.unenforced
    texts = {'{"branch":null}': True, '{"commit":null}': True, '{"branch":null,"commit":null}': False, "{}": False}
    assert texts == {text: engine_of(byte).accepts(grammar, byte.guarded([("a", "object", text)])) for text in texts}
