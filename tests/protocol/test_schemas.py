"""The schemas of a request, checked apart from the rest of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.protocol.chat import ChatRequest, parse
from server.protocol.schemas import check_schemas, needs_thread
from server.schemas.library import SchemaLibrary


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def answer_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


BAD = {"properties": {"a": {"type": "text"}}}


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"tools": [tool("f"), tool("g", parameters=BAD)]}, "tools[1].function.parameters"),
        (
            {"messages": [{"role": "user", "content": "hi"}, {"role": "system", "tools": [tool("f", parameters=BAD)]}]},
            "messages[1].tools[0].function.parameters",
        ),
        ({"response_format": answer_of(BAD)}, "response_format.json_schema.schema"),
    ],
)
def test_every_schema_is_checked_where_it_is(fields: dict[str, Any], where: str) -> None:
    request = parse(body(**fields))  # which looks at no schema

    with pytest.raises(InvalidRequestError) as caught:
        check_schemas(request, SchemaLibrary())
    assert f"{where}.properties.a.type" == caught.value.param


def test_what_is_declared_is_at_hand() -> None:
    late = {"role": "system", "tools": [tool("g", parameters={"required": ["b"]})]}
    request = parse(
        body(tools=[tool("f")], messages=[late, {"role": "user", "content": "hi"}], response_format=answer_of({"type": "array"}))
    )
    schemas = check_schemas(request, SchemaLibrary())

    assert ("f", "g") == schemas.tools.names
    assert '"b" is a required property' == schemas.tools.error_in("g", "{}")
    assert schemas.answer is not None
    assert schemas.answer.validator is not None
    assert "not of type" in (schemas.answer.validator.errors_in("{}") or "")


def test_a_request_without_schemas_costs_nothing() -> None:
    schemas = check_schemas(parse(body(tools=[tool("f")], response_format={"type": "json_object"})), SchemaLibrary())

    assert schemas.answer is None
    assert schemas.tools.error_in("f", '{"a": 1}') is None


LARGE = {"type": "object", "properties": {f"p{n}": {"anyOf": [{"type": "string"}, {"type": "null"}]} for n in range(15_000)}}


def needs(data: bytes) -> bool:
    return needs_thread(parse(data), len(data))


def test_only_large_schemas_need_a_thread() -> None:
    long_talk = [{"role": "user", "content": "word " * 100_000}]

    assert not needs(body(tools=[tool("f", parameters=BAD)]))
    assert not needs(body(tools=[tool("f", parameters=BAD, description="d" * 100_000)], messages=long_talk))
    assert needs(body(tools=[tool("f", parameters=LARGE)]))
    assert needs(body(response_format=answer_of(LARGE)))


async def test_others_run_while_a_large_schema_is_checked() -> None:
    """Were it native code, not one turn would come between; Python hands over every 5 ms."""
    request: ChatRequest = parse(body(tools=[tool("f", parameters=LARGE)]))
    checking = asyncio.ensure_future(asyncio.to_thread(check_schemas, request, SchemaLibrary()))
    num_turns = 0
    while not checking.done():
        num_turns += 1
        await asyncio.sleep(0)

    assert (await checking).tools.error_in("f", '{"p0": 3}') is None, "it is too large to hold anyone to"
    assert num_turns > 100


def test_a_schema_nested_deeper_than_can_be_written_goes_to_the_thread() -> None:
    remark: list[Any] = []
    for _ in range(900):
        remark = [remark]
    request = parse(body(tools=[tool("f", parameters={"description": "x" * 20_000, "x": remark})]))

    def deeper(levels: int) -> bool:
        return deeper(levels - 1) if levels else needs_thread(request, 30_000)

    assert deeper(200)
