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
