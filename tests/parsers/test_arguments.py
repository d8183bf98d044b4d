"""Arguments of any kind, written as the model writes them, come back as the same JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.parsers.arguments import CallArguments
from server.parsers.recovery import Recoveries

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "<|close|>argument<|sep|>",
        '"',
        "\\",
        "\\u0041",
        "&quot;",
        "&amp;",
        "\x00\x1f\n",
        "👨‍👩‍👧",
        "e\u0301",
        "</",
        "<|",
        "{",
        "[1",
        "null",
        " ",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=4)
BEFORE = (["close", "response", "sep"], ["open", "tools", "sep"])
AFTER = (["close", "tools", "sep"], ["close", "message", "sep"], ["end_of_msg"])


def type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return {str: "string", int: "number", float: "number", list: "array", dict: "object"}[type(value)]


def attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")


def call(name: str, arguments: dict[str, Any]) -> list[Any]:
    """The pieces of one call as K3's renderer writes them."""
    pieces: list[Any] = [["open", f'call tool="{attribute(name)}" index="1"', "sep"]]
    for key, value in arguments.items():
        body = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        pieces.append(["open", f'argument key="{attribute(key)}" type="{type_of(value)}"', "sep"])
        pieces += [body, ["close", "argument", "sep"]]
    return [*pieces, ["close", "call", "sep"]]


@given(name=TEXT.filter(bool), arguments=OBJECTS, size=st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_arguments_come_back_in_the_format_of_json_dumps(pen: Any, name: str, arguments: dict[str, Any], size: int) -> None:
    token_ids = pen.write(*BEFORE, *call(name, arguments), *AFTER)
    parser = pen.parser(tools=[name])
    steps = [token_ids[start : start + size] for start in range(0, len(token_ids), size)]
    expected = [
        ["call", 0, name],
        ["arguments", 0, json.dumps(arguments, ensure_ascii=False)],
        ["end", 0],
        ["finish", "tool_calls"],
    ]
    assert expected == pen.read(parser, steps)
    assert {} == parser.recoveries


@given(arguments=OBJECTS, data=st.data())
@settings(max_examples=100, deadline=None)
def test_what_is_sent_before_the_end_is_a_prefix_of_the_whole(byte: Any, arguments: dict[str, Any], data: st.DataObject) -> None:
    token_ids = byte.write(*BEFORE, *call("f", arguments))
    cut = data.draw(st.integers(0, len(token_ids) - 1))
    events = byte.read(byte.parser(), [token_ids[:cut]], "length")
    sent = "".join(word[2] for word in events if word[0] == "arguments")
    whole = json.dumps(arguments, ensure_ascii=False)
    assert whole.startswith(sent.rstrip("\ufffd"))
    called = any(word[0] == "call" for word in events)
    assert ([["cut", 0]] if called else []) == [word for word in events if word[0] in ("cut", "end")]


@given(arguments=OBJECTS)
@settings(max_examples=50, deadline=None)
def test_a_json_body_comes_back_as_it_was_written(byte: Any, arguments: dict[str, Any]) -> None:
    body = json.dumps(arguments, indent=1)
    pieces = (["open", 'call tool="f" index="1"', "sep"], ["open", 'json type="object"', "sep"], body)
    token_ids = byte.write(*BEFORE, *pieces, ["close", "json", "sep"], ["close", "call", "sep"], *AFTER)
    expected = [["call", 0, "f"], ["arguments", 0, body], ["end", 0], ["finish", "tool_calls"]]
    assert expected == byte.read(byte.parser(), [[token_id] for token_id in token_ids])


@given(tag=st.sampled_from(["string", "number", "boolean", "null", "object", "array", "any", None]), text=VALUES.map(str) | TEXT)
@settings(max_examples=200, deadline=None)
def test_any_text_under_any_type_is_a_json_value(tag: str | None, text: str) -> None:
    arguments = CallArguments(Recoveries().count)
    opened = arguments.open_argument("k", tag)
    fragments = [opened, *(arguments.feed(character) for character in text), arguments.close()]
    whole = CallArguments(Recoveries().count)
    assert "".join(fragments) == whole.open_argument("k", tag) + whole.feed(text) + whole.close()
    value = json.loads("".join(fragments))["k"]
    if tag == "string":
        assert text == value


@pytest.mark.parametrize("text", ["5", "", "true", '{"a": [1, "b"]}', "{bad", "x" * 5000, '"' + "x" * 5000 + '"'])
def test_text_that_is_not_json_is_kept_whole_as_a_string(text: str) -> None:
    arguments = CallArguments(Recoveries().count)
    value = json.loads(arguments.open_argument("k", "number") + arguments.feed(text) + arguments.close())["k"]
    try:
        expected = json.loads(text) if len(text) < 2000 else text
    except json.JSONDecodeError:
        expected = text
    assert expected == value


@pytest.mark.parametrize(
    ("tag", "steps"),
    [
        ("string", [("a", '"a'), ('"b', '\\"b'), ("\n", "\\n")]),
        (
            "object",
            [("{", ""), ('"', '{"'), ("key", "key"), ('"', '"'), (": ", ""), ('"v', ': "v'), ("alue", "alue"), ('"}', '"}')],
        ),
        ("array", [("[[", ""), ("1", ""), ("2", ""), (",", "[[12"), (" 3]", ", 3]"), ("]", "]")]),
        ("number", [("1", ""), ("2", "")]),
        ("number", [("1" * 2000, ""), ("1" * 2000, '"' + "1" * 4000), ("1", "1")]),
    ],
)
def test_values_are_sent_while_they_are_written(tag: str, steps: list[tuple[str, str]]) -> None:
    arguments = CallArguments(Recoveries().count)
    arguments.open_argument("k", tag)
    assert [sent for _, sent in steps] == [arguments.feed(text) for text, _ in steps]


ONLY = {name: frozenset({name}) for name in ("string", "integer", "number", "boolean", "null", "object", "array")}
OPTIONAL_STRING = frozenset({"string", "null"})


@pytest.mark.parametrize(
    ("tag", "text", "types", "expected", "kinds"),
    [
        # tagged as a string, and the schema has none: JSON of a type that it has
        ("string", "3", ONLY["integer"], "3", {"coerced_value": 1}),
        ("string", " -12\n", ONLY["integer"], "-12", {"coerced_value": 1}),
        ("string", "123456789012345678901234567890", ONLY["integer"], "123456789012345678901234567890", {"coerced_value": 1}),
        ("string", "1.50", ONLY["number"], "1.50", {"coerced_value": 1}),
        ("string", "true", ONLY["boolean"], "true", {"coerced_value": 1}),
        ("string", "null", frozenset({"null", "integer"}), "null", {"coerced_value": 1}),
        ("string", '{"a":1,  "b": []}', ONLY["object"], '{"a":1,  "b": []}', {"coerced_value": 1}),
        ("string", "[]", ONLY["array"], "[]", {"coerced_value": 1}),
        # else it stays the string that it is
        ("string", "3.0", ONLY["integer"], '"3.0"', {}),
        ("string", "1e3", ONLY["integer"], '"1e3"', {}),
        ("string", "007", ONLY["integer"], '"007"', {}),
        ("string", "True", ONLY["boolean"], '"True"', {}),
        ("string", "three", ONLY["integer"], '"three"', {}),
        ("string", "", ONLY["integer"], '""', {}),
        ("string", '"3"', ONLY["integer"], '"\\"3\\""', {}),
        ("string", "[1]", ONLY["object"], '"[1]"', {}),
        ("string", "[see below]", ONLY["array"], '"[see below]"', {}),
        ("string", "1" * 3000, ONLY["integer"], '"' + "1" * 3000 + '"', {}),
        # the schema has strings: raw, whatever it says
        ("string", "3", frozenset({"string", "integer"}), '"3"', {}),
        ("string", "3", frozenset(), '"3"', {}),
        ("string", "3", None, '"3"', {}),
        # tagged as something else, and the schema has only strings for it
        ("number", "007", ONLY["string"], '"007"', {"coerced_value": 1}),
        ("boolean", "true", ONLY["string"], '"true"', {"coerced_value": 1}),
        ("object", '{"a": "b"}', ONLY["string"], '"{\\"a\\": \\"b\\"}"', {"coerced_value": 1}),
        ("array", "[1, 2", ONLY["string"], '"[1, 2"', {"coerced_value": 1}),
        ("number", "5", OPTIONAL_STRING, '"5"', {"coerced_value": 1}),
        ("number", "", ONLY["string"], '""', {"coerced_value": 1}),
        # a JSON string is one; and nothing is no text
        ("object", '"Paris"', ONLY["string"], '"Paris"', {"wrong_type": 1}),
        ("number", "null", OPTIONAL_STRING, "null", {"wrong_type": 1}),
        ("null", "null", ONLY["string"], "null", {}),
        # the types agree: as it is written
        ("number", "3.0", ONLY["integer"], "3.0", {}),
        ("integer", "3", ONLY["integer"], "3", {}),
        ("object", "{'a'", ONLY["object"], "\"{'a'\"", {"invalid_json": 1}),
        ("number", "abc", ONLY["number"], '"abc"', {"invalid_json": 1}),
        ("number", '"3"', ONLY["integer"], "3", {"coerced_value": 1}),
        ("number", '"three"', ONLY["integer"], '"three"', {"wrong_type": 1}),
        ("number", '"3.5"', ONLY["integer"], '"3.5"', {"wrong_type": 1}),
        ("number", "true", ONLY["integer"], "true", {"wrong_type": 1}),
        # no type at all: the schema's
        (None, "5", ONLY["string"], '"5"', {"untyped_argument": 1}),
        (None, "5", ONLY["integer"], "5", {"untyped_argument": 1}),
        (None, "five", ONLY["integer"], '"five"', {"untyped_argument": 1, "invalid_json": 1}),
    ],
)
def test_a_schema_decides_what_a_value_is_where_that_is_safe(
    tag: str | None, text: str, types: frozenset[str] | None, expected: str, kinds: dict[str, int]
) -> None:
    for size in (1, 2, len(text) + 1):
        recoveries = Recoveries()
        arguments = CallArguments(recoveries.count, {} if types is None else {"k": types})
        fragments = [arguments.open_argument("k", tag)]
        fragments += [arguments.feed(text[start : start + size]) for start in range(0, len(text), size)]
        assert '{"k": ' + expected + "}" == "".join([*fragments, arguments.close()])
        assert kinds == recoveries.as_dict()


@pytest.mark.parametrize(
    ("tag", "types", "steps"),
    [
        ("string", ONLY["object"], [('{"', '{"'), ("a", "a"), ('": 1', '"'), ("}", ": 1}")]),
        ("string", ONLY["array"], [("x", '"x'), ("y", "y")]),
        ("object", ONLY["string"], [('{"', '"{\\"'), ("a", "a")]),
        ("string", ONLY["integer"], [("1", ""), ("2", ""), ("x", "")]),
    ],
)
def test_coerced_values_are_sent_while_they_are_written(tag: str, types: frozenset[str], steps: list[tuple[str, str]]) -> None:
    arguments = CallArguments(Recoveries().count, {"k": types})
    arguments.open_argument("k", tag)
    assert [sent for _, sent in steps] == [arguments.feed(text) for text, _ in steps]


@given(
    tag=st.sampled_from(["string", "number", "boolean", "null", "object", "array", None]),
    types=st.frozensets(st.sampled_from(sorted(ONLY)), max_size=3),
    text=VALUES.map(str) | VALUES.map(json.dumps) | TEXT,
    size=st.integers(1, 8),
)
@settings(max_examples=400, deadline=None)
def test_coercion_loses_nothing(tag: str | None, types: frozenset[str], text: str, size: int) -> None:
    """Whatever the schema: one JSON value; of a text tagged as a string, the text itself or the JSON that it is."""
    recoveries = Recoveries()
    arguments = CallArguments(recoveries.count, {"k": types})
    fragments = [arguments.open_argument("k", tag)]
    fragments += [arguments.feed(text[start : start + size]) for start in range(0, len(text), size)]
    sent = "".join([*fragments, arguments.close()])
    value = json.loads(sent)["k"]
    if tag == "string" and "invalid_json" not in recoveries.as_dict():
        assert text == value or text.strip(" \t\n\r") == sent[len('{"k": ') : -1]
        assert (text != value) == ("coerced_value" in recoveries.as_dict())
