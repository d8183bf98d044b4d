from __future__ import annotations

from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.prompts.base import Conversation
from server.prompts.kimi_k3 import segments_of
from server.prompts.segments import Segment

USER = [{"role": "user", "content": "x"}]


def text_of(segments: list[Segment]) -> str:
    """The segments as one text."""
    return "".join(segment.text for segment in segments)


def text(**options: Any) -> str:
    return text_of(segments_of(Conversation(**({"messages": USER, "thinking": False} | options))))


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"properties": value}
    return value


@pytest.mark.parametrize(
    ("json_schema", "fenced"),
    [
        ({"name": "n", "schema": {"b": 1, "a": {"d": "ä", "c": []}}}, '{"a":{"c":[],"d":"ä"},"b":1}'),
        ({"name": "n", "json_schema": {"a": 1}}, '{"a":1}'),
        ({"schema": {"a": 1}, "json_schema": {"b": 2}}, '{"a":1}'),
        ({"type": "object"}, '{"type":"object"}'),
        ({"schema": {}}, "{}"),
    ],
)
def test_where_the_schema_is_found(json_schema: dict[str, Any], fenced: str) -> None:
    whole = text(response_format={"type": "json_schema", "json_schema": json_schema})
    assert f"the following schema:\n```json\n{fenced}\n```<|close|>message" in whole


@pytest.mark.parametrize("response_format", [None, {"type": "text"}])
def test_text_needs_no_note(response_format: Any) -> None:
    assert text() == text(response_format=response_format)
    assert "response-format" not in text()


def test_a_free_tool_choice_needs_no_note() -> None:
    assert "tool-choice" not in text(tool_choice="auto")


def test_keys_of_tools_may_come_in_any_order_tools_may_not() -> None:
    first = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"b": {}, "a": {}}}}}
    same = {"function": {"parameters": {"properties": {"a": {}, "b": {}}, "type": "object"}, "name": "f"}, "type": "function"}
    other = {"type": "function", "function": {"name": "g"}}
    assert text(tools=[first, other]) == text(tools=[same, other])
    assert text(tools=[first, other]) != text(tools=[other, first])


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [nested(100_000)]}, "tools"),
        ({"messages": [{"role": "system", "content": "", "tools": [nested(100_000)]}]}, "messages[0].tools"),
        ({"response_format": {"type": "json_schema", "json_schema": nested(100_000)}}, "response_format.json_schema"),
    ],
)
def test_endless_nesting_is_refused_by_its_path(options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError, match="nested too deep") as caught:
        text(**options)
    assert param == caught.value.param
