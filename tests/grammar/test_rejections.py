"""The engine takes what fits a schema, and nothing else: one thing wrong, and a token is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from server.grammar.base import Bounds, Shape
from tests.grammar.conftest import Engine, Speaker

pytestmark = pytest.mark.vllm

EngineOf = Callable[[Speaker], Engine]
S, N, B, Z, O, A = "string", "number", "boolean", "null", "object", "array"  # noqa: E741


def tool(parameters: Any, name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def one(schema: Any) -> dict[str, Any]:
    """A tool of one required argument `a`."""
    return tool({"type": "object", "properties": {"a": schema}, "required": ["a"]})


THREE = tool(
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "unit": {"enum": ["c", "f"]},
        },
        "required": ["city", "days"],
    }
)
CITY, DAYS, UNIT = ("city", S, "Oslo"), ("days", N, "3"), ("unit", S, "c")


@pytest.mark.parametrize("arguments", [(CITY, DAYS), (DAYS, CITY), (UNIT, DAYS, CITY), (CITY, UNIT, DAYS), (DAYS, CITY, UNIT)])
def test_arguments_come_in_any_order(speaker: Speaker, engine_of: EngineOf, arguments: Any) -> None:
    assert engine_of(speaker).accepts(speaker.grammar(Shape(tools=[THREE])), speaker.calls(("f", arguments)))


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (CITY,),
        (DAYS, UNIT),
        (CITY, DAYS, CITY),
        (CITY, DAYS, DAYS),
        (CITY, DAYS, ("more", S, "x")),
        (CITY, ("days", N, "0")),
        (CITY, ("days", N, "10")),
        (CITY, ("days", N, "3.0")),
        (CITY, ("days", N, " 3")),
        (CITY, ("days", N, "")),
        (CITY, ("days", S, "3")),
        (("city", O, "{}"), DAYS),
        (("city", Z, "null"), DAYS),
        (CITY, DAYS, ("unit", S, "k")),
        (CITY, DAYS, ("unit", S, "")),
        (CITY, DAYS, ("unit", S, "cf")),
        (CITY, DAYS, ("Unit", S, "c")),
    ],
)
def test_wrong_arguments_are_refused(speaker: Speaker, engine_of: EngineOf, arguments: Any) -> None:
    assert not engine_of(speaker).accepts(speaker.grammar(Shape(tools=[THREE])), speaker.calls(("f", arguments)))


VALUES: list[tuple[Any, str, list[str], list[str]]] = [
    ({"type": "string", "minLength": 2, "maxLength": 4}, S, ["ab", "é日🙂", "<<[["], ["a", "abcde", ""]),
    ({"type": "string", "minLength": 1}, S, ["a", "<|close|>"], [""]),
    ({"type": "string", "pattern": "^[a-c]+$"}, S, ["a", "abc"], ["", "d", "abd", "A"]),
    ({"type": "string", "pattern": "x"}, S, ["x", "axb"], ["", "ab"]),
    ({"type": "string", "format": "date"}, S, ["2031-02-28", "2032-02-29"], ["2031-02-29", "2031-2-3", "31.12.2031", ""]),
    ({"type": "string", "format": "ipv4"}, S, ["10.0.0.255"], ["10.0.0.256", "10.0.0"]),
    ({"enum": ["", "<|close|>", "[EOS]", "a b"]}, S, ["", "<|close|>", "[EOS]", "a b"], ["<|close|", "[EOS", "a", "b"]),
    ({"const": "x"}, S, ["x"], ["y", "xx"]),
    ({"type": "integer"}, N, ["0", "-7", "123456789012"], ["007", "1.5", "-0", "+1", "1e3", "a"]),
    ({"type": "integer", "minimum": -12, "maximum": 105}, N, ["-12", "0", "99", "105"], ["-13", "106", "1000"]),
    (
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1.5},
        N,
        ["0.001", "1", "1.5", "1.50"],
        ["0", "0.0", "1.51", "2", "-1"],
    ),
    ({"type": "integer", "multipleOf": 5}, N, ["0", "-15", "100"], ["1", "101"]),
    ({"type": "boolean"}, B, ["true", "false"], ["True", "1", "tru"]),
    ({"enum": [1, True, None]}, N, ["1"], ["2", "1.0", "true"]),
    (
        {"type": "array", "items": {"type": "integer"}},
        A,
        ["[]", "[1]", "[1,2, 3]"],
        ["[", "[1,]", '["a"]', "[1,  2]", "[ 1]", "[1\n,2]"],
    ),
    (
        {"type": "array", "minItems": 2, "maxItems": 3, "items": {"type": "null"}},
        A,
        ["[null,null]"],
        ["[]", "[null]", "[null,null,null,null]"],
    ),
    (
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
        A,
        ["[]", '["a"]', '["a", 1]'],
        ["[1]", '["a","b"]', '["a",1,2]'],
    ),
    (
        {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "string"}}, "required": ["x"]},
        O,
        ['{"x":1}', '{"y": "", "x": 2}', '{"x":1,"y":"<|close|> \\"q\\" [EOS]"}'],
        [
            "{}",
            '{"y":"a"}',
            '{"x":1,"x":2}',
            '{"x":1,"z":1}',
            '{"x":"1"}',
            "{x:1}",
            '{"x":1,}',
            '{"x" :1}',
            '{"x":1,"y":"a\nb"}',
            '{"x":1,"y":"\\q"}',
        ],
    ),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, O, ["{}", '{"a":1, "b":2}'], ['{"a":"b"}', '{"":1}', "[]"]),
    (
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
        O,
        ['{"a":"x"}', '{"ab":1}', '{"b": 1}'],
        ['{"a":1}', '{"b":"x"}'],
    ),
    ({"type": "string", "maxLength": 3, "description": "as JSON below"}, S, ['"x"', "\\n"], ['"xx"']),
    ({"type": "array", "items": {"type": "string", "maxLength": 2}}, A, ['["ab","\\n\\"", "é🙂"]'], ['["abc"]', '["\\n\\n\\n"]']),
    (
        {"type": "array", "items": {"enum": ["<|sep|>", "[EOS]", ["[BOS]"]]}},
        A,
        ['["<|sep|>","[EOS]",["[BOS]"]]'],
        ['["<|open|>"]'],
    ),
]


@pytest.mark.parametrize(("schema", "kind", "good", "bad"), VALUES)
def test_values(speaker: Speaker, engine_of: EngineOf, schema: Any, kind: str, good: list[str], bad: list[str]) -> None:
    grammar = speaker.grammar(Shape(tools=[one(schema)]))
    engine = engine_of(speaker)

    assert dict.fromkeys(good, True) == {text: engine.accepts(grammar, speaker.guarded([("a", kind, text)])) for text in good}
    assert dict.fromkeys(bad, False) == {text: engine.accepts(grammar, speaker.guarded([("a", kind, text)])) for text in bad}


TYPES: list[tuple[Any, list[tuple[str, str]], list[tuple[str, str]]]] = [
    ({"type": ["string", "null"]}, [(S, "x"), (Z, "null")], [(N, "1"), (Z, "x"), (B, "true")]),
    (
        {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
        [(N, "1"), (S, "ab")],
        [(N, "ab"), (S, "abc"), (N, "1.5")],
    ),
    ({"oneOf": [{"const": 1}, {"const": "1"}]}, [(N, "1"), (S, "1")], [(N, "2"), (B, "true")]),
    ({}, [(S, "x"), (N, "1"), (B, "true"), (Z, "null"), (O, '{"a":[{}]}'), (A, "[[]]")], [(O, "[]"), (A, "{}"), (N, "true")]),
    ({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, [(N, "1")], [(S, "x"), (Z, "null")]),
    ({"type": "number"}, [(N, "1.5e-3"), (N, "-0.5")], [("integer", "1"), (N, "-0"), (N, "1e999")]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), TYPES)
def test_the_type_tag_fits_the_value(byte: Speaker, engine_of: EngineOf, schema: Any, good: Any, bad: Any) -> None:
    grammar = byte.grammar(Shape(tools=[one(schema)]))
    engine = engine_of(byte)

    assert [pair for pair in good if not engine.accepts(grammar, byte.guarded([("a", *pair)]))] == []
    assert [pair for pair in bad if engine.accepts(grammar, byte.guarded([("a", *pair)]))] == []


def test_a_recursive_schema_is_held_at_any_depth(speaker: Speaker, engine_of: EngineOf) -> None:
    node = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/n"}}, "required": ["v"]}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"], "$defs": {"n": node}}
    deep = '{"v":1,"next":' * 9 + '{"v":2}' + "}" * 9
    grammar, short = speaker.grammar(Shape(tools=[tool(schema)])), speaker.grammar(Shape(tools=[tool(schema)]), Bounds(depth=2))
    engine = engine_of(speaker)

    assert engine.accepts(grammar, speaker.guarded([("a", O, deep)]))
    assert not engine.accepts(grammar, speaker.guarded([("a", O, deep.replace("2", '"2"'))]))
    assert not engine.accepts(short, speaker.guarded([("a", O, deep)]))
    assert engine.accepts(short, speaker.guarded([("a", O, '{"v":1,"next":{"v":2}}')]))


@pytest.mark.parametrize("name", ['q"uo&te', "with blank", "<|close|>", "[EOS]", "naïve日本", "f" * 200, "a\\b", "a\n\0b"])
def test_any_tool_name_can_be_called(speaker: Speaker, engine_of: EngineOf, name: str) -> None:
    tools = [tool({}, name), tool({}, "other")]
    grammar = speaker.grammar(Shape(tools=tools, named=name))

    assert engine_of(speaker).accepts(grammar, grammar.shortest)
    assert [name] == [call.name for call in speaker.read(grammar.shortest).calls]
    assert not engine_of(speaker).accepts(grammar, speaker.calls(("other", ())))
