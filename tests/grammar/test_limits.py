"""What can't be held, can't be satisfied, or is made to hurt: noted, refused with its path, or bounded."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.grammar import factory as factories
from server.grammar.base import Bounds, Grammar, Shape
from tests.grammar.conftest import Engine, Speaker

PARAMETERS = "tools[0].function.parameters"


def tool(parameters: Any, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def with_a(schema: Any, required: bool = True, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"] if required else [], **more}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


ENDLESS = {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}, "required": ["next"]}}

UNENFORCED: list[tuple[Any, list[str]]] = [
    ({"not": {"type": "string"}}, ["not"]),
    ({"type": "array", "uniqueItems": True}, ["uniqueItems"]),
    ({"type": "array", "contains": {"type": "string"}}, ["contains"]),
    ({"type": "object", "dependentRequired": {"x": ["y"]}}, ["dependentRequired"]),
    ({"if": {"type": "string"}, "then": {"minLength": 3}}, ["if"]),
    ({"type": "number", "multipleOf": 0.01}, ["multipleOf"]),
    ({"type": "integer", "multipleOf": 100_003}, ["multipleOf"]),
    ({"type": "string", "pattern": "(a)\\1"}, ["pattern"]),
    ({"type": "string", "pattern": "\\bword\\b"}, ["pattern"]),
    ({"type": "string", "pattern": "a{1,100000}"}, ["pattern"]),
    ({"type": "string", "pattern": "("}, ["pattern"]),
    ({"type": "string", "maxLength": 257}, ["maxLength"]),
    ({"type": "string", "minLength": 65, "maxLength": 256}, ["minLength"]),
    ({"type": "string", "pattern": "x", "maxLength": 256}, ["maxLength"]),
    ({"type": "string", "minLength": 999_999_999_999}, ["minLength"]),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["oneOf"]),
    ({"type": "array", "minItems": 100_000}, ["minItems"]),
    ({"type": "integer", "minimum": 10**60}, ["minimum"]),
    ({"$ref": "https://example.org/schema.json"}, ["$ref"]),
    ({"$ref": "#/nowhere"}, ["$ref"]),
    ({"type": "strnig"}, ["type"]),
    ({"type": "string", "minLength": "3"}, ["minLength"]),
    ({"enum": [{"x": 1}], "required": ["y"]}, ["required"]),
    ({"type": "object", "properties": {"x": {}}, "additionalProperties": True, "minProperties": 5}, ["minProperties"]),
]


@pytest.mark.parametrize(("schema", "keys"), UNENFORCED)
def test_what_is_not_held_is_named(byte: Speaker, schema: Any, keys: list[str]) -> None:
    grammar = byte.grammar(Shape(tools=[tool(with_a(schema))], tool_choice="required"))

    assert tuple(f"{PARAMETERS}.properties.a.{key}" for key in keys) == grammar.unenforced
    assert byte.read(grammar.shortest).recoveries == {}


@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        (with_a({"$ref": "#/$defs/n"}, **{"$defs": ENDLESS}), f"{PARAMETERS}.$defs.n.properties.next"),
        (with_a(False), f"{PARAMETERS}.properties.a"),
        (with_a({"enum": []}), f"{PARAMETERS}.properties.a"),
        (with_a({"type": "integer", "minimum": 3, "maximum": 2}), f"{PARAMETERS}.properties.a"),
        (with_a({"type": "string", "minLength": 3, "maxLength": 2}), f"{PARAMETERS}.properties.a"),
        (with_a(with_a({"allOf": [{"type": "string"}, {"type": "null"}]})), f"{PARAMETERS}.properties.a.properties.a"),
        (with_a({"type": "array", "items": False, "minItems": 1}), f"{PARAMETERS}.properties.a"),
        ({"type": "object", "properties": {}, "required": ["b"], "additionalProperties": False}, f"{PARAMETERS}.required"),
        (False, PARAMETERS),
    ],
)
@pytest.mark.parametrize("bounds", [Bounds(), Bounds(depth=1)])
def test_a_schema_without_values_is_refused_with_its_path(byte: Speaker, parameters: Any, path: str, bounds: Bounds) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        byte.grammar(Shape(tools=[tool(parameters)]), bounds)

    assert path == caught.value.param
    assert f"`{path}`"[:60] in caught.value.message


@pytest.mark.parametrize("schema", [False, {"enum": []}, {"$ref": "#/$defs/n"}, {"type": "integer", "minimum": 3, "maximum": 2}])
def test_an_optional_key_without_values_is_left_out(byte: Speaker, schema: Any) -> None:
    parameters = with_a(schema, required=False, **{"$defs": ENDLESS})
    inner = {"type": "object", "properties": {"o": parameters}, "required": ["o"], "$defs": ENDLESS}

    assert byte.grammar(Shape(tools=[tool(parameters)])).unenforced == ()
    assert byte.read(byte.grammar(Shape(tools=[tool(inner)], tool_choice="required")).shortest).calls[0].value() == {"o": {}}


def test_a_path_is_where_the_tool_stands(byte: Speaker) -> None:
    shape = Shape(tools=[tool({}), tool(with_a(False), "g")], tool_paths=["tools[0]", "messages[2].tools[0]"])

    with pytest.raises(InvalidRequestError) as caught:
        byte.grammar(shape)

    assert caught.value.param == "messages[2].tools[0].function.parameters.properties.a"


def test_only_strict_tools_are_held_where_that_is_asked_for(byte: Speaker) -> None:
    tools = [tool(with_a(False), "loose"), tool(with_a({"type": "null"}), "held", strict=True)]
    grammar = byte.grammar(Shape(tools=tools, named="held", strict_only=True))

    assert byte.read(grammar.shortest).calls[0].value() == {"a": None}
    assert byte.read(byte.grammar(Shape(tools=tools, named="loose", strict_only=True)).shortest).calls[0].value() == {}


HOSTILE: dict[str, Any] = {
    "a megabyte of properties": {
        "type": "object",
        "properties": {f"key_{number}": {"type": "string", "description": "x" * 100} for number in range(8_000)},
    },
    "a megabyte of values": with_a({"enum": [f"value {number}" for number in range(60_000)]}),
    "nested": nested(900),
    "nested arrays": with_a({"type": "array", "items": nested(300)}),
    "unions of unions": with_a(
        {"anyOf": [{"allOf": [{"anyOf": [{"minLength": a}, {"maxLength": b}]} for a in range(9)]} for b in range(9)]}
    ),
    "references in a circle": with_a(
        {"$ref": "#/$defs/a"}, **{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "every schema refers to every other": {
        "type": "object",
        "properties": {f"k{i}": {"$ref": f"#/$defs/d{i}"} for i in range(40)},
        "$defs": {
            f"d{i}": {"type": "object", "properties": {f"k{j}": {"$ref": f"#/$defs/d{j}"} for j in range(40)}} for i in range(40)
        },
    },
    "repetition of repetition": with_a({"type": "string", "pattern": "^((a{1,50}){1,50}){1,50}$"}),
    "long lists of values that must be in both": with_a(
        {"allOf": [{"enum": [[number, side] for number in range(20_000)]} for side in (0, 1)]}, required=False
    ),
    "long lists of values that must be in one": with_a(
        {"oneOf": [{"enum": [f"{side} {number}" for number in range(2_000)]} for side in range(40)]}
    ),
    "many names": {
        "type": "object",
        "properties": {f"k{number}": {"$ref": f"#a{number}"} for number in range(5_000)},
        "$defs": {f"d{number}": {"$anchor": f"a{number}", "type": "string"} for number in range(5_000)},
    },
    "repetition of nothing": with_a({"type": "string", "pattern": "(?:(?:(?:){60000}){60000}){0,60000}"}),
    "many ways to read one text": {
        "type": "object",
        "properties": {f"k{i}": {"type": "string", "pattern": f"^(?:.?){{1000}}{i}$"} for i in range(20)},
    },
    "a pattern that explodes": with_a({"type": "string", "pattern": "(a|b)*a(a|b){30}"}),
    "a long pattern": with_a({"type": "string", "pattern": "|".join(f"word{number}" for number in range(2_000))}),
    "many patterns": {"type": "object", "patternProperties": {f"^a{number}.*b": {} for number in range(60)}},
    "many lengths": {
        "type": "object",
        "properties": {
            f"k{i}": {"type": "string", "pattern": "^.*a.*$", "minLength": i, "maxLength": i + 400} for i in range(40)
        },
    },
    "many items": with_a({"type": "array", "minItems": 10**9, "maxItems": 10**10}),
    "long array in long array": with_a(
        {"type": "array", "maxItems": 500, "items": {"type": "array", "maxItems": 500, "prefixItems": [{}] * 400}}
    ),
    "malformed": {
        "type": ["object", 3],
        "properties": {"a": 3, "b": []},
        "required": "a",
        "allOf": {},
        "anyOf": 3,
        "$defs": [],
        "patternProperties": [],
    },
    "lone surrogates": {"type": "object", "properties": {"\ud800": {"enum": ["\udfff", "ok"]}, "b": {"enum": ["\udfff", "ok"]}}},
}


@pytest.mark.parametrize("value", [1e300, 3.5, 10**38 + 1])
def test_constants_of_any_size_are_held_to_a_factor(byte: Speaker, value: float) -> None:
    grammar = byte.grammar(Shape(tools=[tool(with_a({"enum": [value, 14], "multipleOf": 7}))], tool_choice="required"))

    assert 14 == byte.read(grammar.shortest).calls[0].value()["a"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("bounds", [Bounds(), Bounds(depth=1, json_chars=32)])
def test_a_hostile_schema_takes_bounded_time_and_room(byte: Speaker, name: str, bounds: Bounds) -> None:
    factory = byte.factory(bounds)
    begin = time.process_time()
    grammar = factory.make(Shape(tools=[tool(HOSTILE[name])], response_format=_format(HOSTILE[name])))
    took_s = time.process_time() - begin

    assert grammar is not None
    assert took_s < 1.5
    assert len(grammar.structural_tag) < 2_000_000
    assert byte.read(grammar.shortest).recoveries == {}


def _format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def test_what_is_too_large_is_left_to_validation(byte: Speaker) -> None:
    tools = [tool(HOSTILE["nested"]), tool(with_a({"type": "null"}), "g")]
    grammar = byte.grammar(Shape(tools=tools, named="f"))

    assert (PARAMETERS,) == grammar.unenforced
    assert byte.read(grammar.shortest).calls[0].value() == {}


@pytest.mark.vllm
def test_500_tools(byte: Speaker, engine_of: Callable[[Speaker], Engine]) -> None:
    properties = {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}, "exact": {"type": "boolean"}}
    tools = [
        tool({"type": "object", "properties": {**properties, f"k{number}": {}}, "required": ["query"]}, f"tool_{number}")
        for number in range(500)
    ]
    grammar = byte.grammar(Shape(tools=tools))
    answer = byte.calls(
        ("tool_321", [("k321", "null", "null"), ("query", "string", "x")]), ("tool_4", [("query", "string", "y")])
    )

    assert engine_of(byte).accepts(grammar, answer)
    assert not engine_of(byte).accepts(grammar, byte.calls(("tool_321", [("k320", "null", "null"), ("query", "string", "x")])))
    assert not engine_of(byte).accepts(grammar, byte.calls(("tool_500", [("query", "string", "x")])))


def test_a_name_with_a_lone_surrogate_is_called_as_the_prompt_shows_it(byte: Speaker) -> None:
    grammar = byte.grammar(Shape(tools=[tool({}, "a\ud800")], tool_choice="required"))

    assert [call.name for call in byte.read(grammar.shortest).calls] == ["a\ufffd"]


def test_grammars_are_made_once_for_each_content(byte: Speaker) -> None:
    factory = byte.factory()

    def make(**more: Any) -> Grammar | None:
        return factory.make(Shape(tools=[tool(with_a({"type": "string"}))], **more))

    assert make() is make()
    assert make() is not make(thinking=True)
    assert make(parallel=False) is not make()
    assert make(tool_choice="none") is None or make(tool_choice="none") is not make()


def test_the_cache_is_bounded(byte: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factories, "MAX_CACHED", 3)
    factory = byte.factory()
    first = Shape(tools=[tool({}, "tool_0")])
    kept = factory.make(first)
    for number in range(1, 3):
        factory.make(Shape(tools=[tool({}, f"tool_{number}")]))
    assert factory.make(first) is kept

    for number in range(3, 6):
        factory.make(Shape(tools=[tool({}, f"tool_{number}")]))
    assert factory.make(first) is not kept
    assert factory.make(first) == kept


def test_a_vocabulary_without_markers_is_refused() -> None:
    class Bare:
        control = MappingProxyType({"<s>": 1})
        control_ids = frozenset({1})
        pieces = (b"a", b"<s>")

    with pytest.raises(ValueError, match=r"`<\|open\|>`"):
        factories.GrammarFactory("kimi_k3", Bare())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`other`"):
        factories.GrammarFactory("other", Bare())  # type: ignore[arg-type]


def test_the_plain_format_holds_nothing(byte: Speaker) -> None:
    assert factories.GrammarFactory("plain", byte.vocabulary).make(Shape(tools=[tool({})], tool_choice="required")) is None


JUNK: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e308,
    "",
    "x",
    "#",
    [],
    [1],
    ["a", 1],
    [[]],
    {},
    {"a": 1},
    {"a": {"type": []}},
    [{}, 3],
)
KEYWORDS = (
    *(
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
    ),
    *("maxProperties", "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "minLength"),
    *(
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "allOf",
        "anyOf",
    ),
    *(
        "oneOf",
        "not",
        "if",
        "then",
        "$ref",
        "$defs",
        "definitions",
        "$schema",
        "$id",
        "$anchor",
        "dependentRequired",
        "description",
    ),
)


@pytest.mark.parametrize("num", [400, pytest.param(20_000, marks=pytest.mark.long)])
def test_junk_in_a_schema_is_read_around(byte: Speaker, num: int) -> None:
    rng = random.Random(num)
    factory = byte.factory()

    def junk(depth: int) -> Any:
        keys = rng.sample(KEYWORDS, rng.randint(1, 4))
        return {key: junk(depth - 1) if depth and rng.random() < 0.4 else rng.choice(JUNK) for key in keys}

    for _ in range(num):
        schema = with_a(junk(2), rng.random() < 0.5)
        try:
            grammar = factory.make(
                Shape(tools=[tool(schema)], response_format=_format(schema), tool_choice=rng.choice(("auto", "required")))
            )
        except InvalidRequestError as error:
            if error.param is None:
                raise
        else:
            assert grammar is not None
            assert byte.read(grammar.shortest).recoveries == {}


@pytest.mark.parametrize("depth", [12, 40])
def test_a_shortest_answer_that_is_too_long_is_not_written(byte: Speaker, depth: int) -> None:
    """Each level has the next one twice: small to say, and without end to write."""
    levels = {
        f"d{level}": {
            "type": "object",
            "properties": {key: {"$ref": f"#/$defs/d{level + 1}"} for key in ("a", "b")},
            "required": ["a", "b"],
        }
        for level in range(depth)
    }
    schema = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/d0"}},
        "required": ["x"],
        "$defs": {**levels, f"d{depth}": {"const": 1}},
    }
    began_s = time.process_time()
    grammar = byte.factory().make(Shape(tools=[tool(schema)], tool_choice="required"))

    assert grammar is not None
    assert () == grammar.shortest
    assert time.process_time() - began_s < 2
