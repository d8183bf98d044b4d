"""Tools, the choice among them, and forms of answers: the shapes that are refused, and what the shapes that are taken mean."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.protocol.chat import ChatRequest, parse

USER = {"role": "user", "content": "hi"}


def tool(name: Any = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def request(**fields: Any) -> ChatRequest:
    return parse(json.dumps({"model": "m", "messages": [USER], **fields}).encode())


def error_of(**fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        request(**fields)
    return caught.value


def names_of(wanted: ChatRequest) -> tuple[str, ...]:
    return tuple(tool["function"]["name"] for tool in wanted.all_tools)


BAD_TOOLS: list[tuple[Any, str]] = [
    (None, ""),
    ("f", ""),
    ([], ""),
    ({}, ".type"),
    ({"type": None, "function": {"name": "f"}}, ".type"),
    ({"type": "custom", "function": {"name": "f"}}, ".type"),
    ({"function": {"name": "f"}}, ".type"),
    ({"type": "function"}, ".function"),
    ({"type": "function", "function": None}, ".function"),
    ({"type": "function", "function": []}, ".function"),
    ({"type": "function", "function": {}}, ".function.name"),
    ({"type": "function", "name": "f"}, ".function"),
    (tool(None), ".function.name"),
    (tool(""), ".function.name"),
    (tool(3), ".function.name"),
    (tool("a" * 257), ".function.name"),
    (tool("a\nb"), ".function.name"),
    (tool("a\x00"), ".function.name"),
    (tool("a\x9f"), ".function.name"),
    (tool(description=3), ".function.description"),
    (tool(description=["x"]), ".function.description"),
    (tool(strict="yes"), ".function.strict"),
    (tool(strict=1), ".function.strict"),
    (tool(parameters="{}"), ".function.parameters"),
    (tool(parameters=[]), ".function.parameters"),
    (tool(parameters=True), ".function.parameters"),
]


@pytest.mark.parametrize(("bad", "where"), BAD_TOOLS)
def test_a_bad_tool_is_refused_wherever_it_is_declared(bad: Any, where: str) -> None:
    assert f"tools[1]{where}" == error_of(tools=[tool("ok"), bad]).param
    assert f"messages[1].tools[1]{where}" == error_of(messages=[USER, {"role": "system", "tools": [tool("ok"), bad]}]).param


@pytest.mark.parametrize(
    "name", ['say "hi"', "with space", "a" * 256, "получить_погоду", "天気", "a.b/c:d", "<|close|>", "&amp;", "🌦"]
)
def test_names_may_be_any_text(name: str) -> None:
    wanted = request(tools=[tool(name)], tool_choice={"type": "function", "function": {"name": name}})

    assert (name,) == names_of(wanted)
    assert name == wanted.named_tool


@pytest.mark.parametrize(
    "function", [{}, {"parameters": None}, {"parameters": {}}, {"description": None, "strict": None}, {"strict": False}]
)
def test_what_may_be_missing(function: dict[str, Any]) -> None:
    assert [tool(**function)] == request(tools=[tool(**function)]).tools


def test_no_tools_are_no_tools() -> None:
    for none in (None, []):
        for choice in (None, "auto", "none"):
            assert () == request(tools=none, tool_choice=choice).all_tools


def test_all_tools_come_in_the_order_in_which_the_model_sees_them() -> None:
    late = [{"role": "system", "tools": [tool("c"), tool("d")]}, USER, {"role": "developer", "tools": [tool("b")]}]
    wanted = request(messages=late, tools=[tool("z"), tool("a")])

    assert ("z", "a", "c", "d", "b") == names_of(wanted)
    assert ["tools[0]", "tools[1]", "messages[0].tools[0]", "messages[0].tools[1]", "messages[2].tools[0]"] == [
        param for param, _ in wanted.placed_tools()
    ]


@pytest.mark.parametrize(
    ("choice", "param", "words"),
    [
        ("any", "tool_choice", "`auto`, `required`, `none`"),
        ("Required", "tool_choice", "`auto`, `required`, `none`"),
        ("f", "tool_choice", "name a function"),
        ({}, "tool_choice.type", "`function`"),
        ({"type": "auto"}, "tool_choice.type", "send the text `auto` alone"),
        ({"type": "tool", "name": "f"}, "tool_choice.type", "`function`"),
        ({"type": "function"}, "tool_choice.function", "missing"),
        ({"type": "function", "name": "f"}, "tool_choice.function", "missing"),
        ({"type": "function", "function": {"name": "g"}}, "tool_choice.function.name", "not in `tools`"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
            "tool_choice.type",
            "leave the other tools out",
        ),
        (3, "tool_choice", "expected"),
        (["f"], "tool_choice", "expected"),
    ],
)
def test_a_bad_choice_is_refused(choice: Any, param: str, words: str) -> None:
    error = error_of(tools=[tool()], tool_choice=choice)

    assert param == error.param
    assert words in error.message


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, None),
        ({"parallel_tool_calls": True}, None),
        ({"parallel_tool_calls": False}, 1),
        ({"tool_choice": "none"}, 0),
        ({"tool_choice": "none", "parallel_tool_calls": False}, 0),
        ({"tool_choice": "required", "parallel_tool_calls": False}, 1),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, None),
    ],
)
def test_how_many_calls_an_answer_may_have(fields: dict[str, Any], most: int | None) -> None:
    assert most == request(tools=[tool()], **fields).max_calls


def test_parallel_calls_are_switched_by_a_boolean() -> None:
    assert "parallel_tool_calls" == error_of(tools=[tool()], parallel_tool_calls="no").param


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({}, "response_format.type"),
        ({"type": "json"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "", "schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": []}}, "response_format.json_schema.schema"),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": "true"}},
            "response_format.json_schema.strict",
        ),
        ("json_object", "response_format"),
    ],
)
def test_a_bad_form_of_answer_is_refused(wanted: Any, param: str) -> None:
    assert param == error_of(response_format=wanted).param


def test_the_schema_of_the_answer() -> None:
    schema = {"type": "object"}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}

    assert schema == request(response_format=form).answer_schema
    for other in (None, {"type": "text"}, {"type": "json_object"}):
        assert request(response_format=other).answer_schema is None
