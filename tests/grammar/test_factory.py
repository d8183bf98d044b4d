"""What is remembered, under which key, and what the log has of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import structlog

from server.errors import InvalidRequestError
from server.grammar import answer, content
from server.grammar.answer import Answer
from server.grammar.base import Shape
from server.grammar.content import is_large, key_of
from tests.grammar.conftest import Speaker
from tests.grammar.test_limits import nested, tool, with_a

DEAD = Shape(tools=[tool(with_a(False))])


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[Shape]:
    """The shapes that grammars were made for, not those that were remembered."""
    made: list[Shape] = []
    compiled = answer.compiled

    def watched(shape: Shape, *rest: Any) -> Answer | None:
        made.append(shape)
        return compiled(shape, *rest)

    monkeypatch.setattr(answer, "compiled", watched)
    return made


async def test_a_refusal_is_remembered(byte: Speaker, shapes: list[Shape]) -> None:
    factory = byte.factory()
    errors: list[InvalidRequestError] = []
    for _ in range(2):
        with pytest.raises(InvalidRequestError) as caught:
            factory.make(DEAD)
        errors.append(caught.value)
    with pytest.raises(InvalidRequestError) as caught:
        await factory.grammar(DEAD, "tenant")
    errors.append(caught.value)

    assert 1 == len(shapes)
    assert 1 == len({(error.message, error.param) for error in errors})
    assert 3 == len(set(map(id, errors)))  # an error that is raised twice would collect frames


async def test_requests_at_once_wait_for_the_same_grammar(byte: Speaker, shapes: list[Shape]) -> None:
    factory = byte.factory()
    shape = Shape(tools=[tool(with_a({"type": "string"}))])
    found = await asyncio.gather(*(factory.grammar(shape, f"tenant {number % 3}") for number in range(9)))

    assert 1 == len(shapes)
    assert 1 == len(set(map(id, found)))


async def test_a_refusal_reaches_all_who_wait(byte: Speaker, shapes: list[Shape]) -> None:
    factory = byte.factory()
    found = await asyncio.gather(*(factory.grammar(DEAD, f"tenant {number}") for number in range(3)), return_exceptions=True)

    assert 1 == len(shapes)
    assert 3 == len(set(map(id, found)))
    assert all(isinstance(error, InvalidRequestError) for error in found)


@pytest.mark.parametrize("large", [False, True])
async def test_the_key_of_large_content_is_found_off_the_loop(
    byte: Speaker, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    threads: list[threading.Thread] = []

    def watched(shape: Shape) -> bytes | None:
        threads.append(threading.current_thread())
        return key_of(shape)

    monkeypatch.setattr("server.grammar.factory.key_of", watched)
    factory = byte.factory()
    shape = Shape(tools=[tool({"description": "x" * (300_000 if large else 10)})])
    first, second = [await factory.grammar(shape) for _ in range(2)]

    assert first is second
    assert [large, large] == [thread is not threading.current_thread() for thread in threads]


@pytest.mark.parametrize(
    ("schema", "large"),
    [
        ({"description": "x" * content.LARGE_BYTES}, True),
        ({"description": "x" * 1000}, False),
        ({"enum": list(range(content.LARGE_BYTES))}, True),
        ({"properties": {"x" * 1000 + str(number): {} for number in range(300)}}, True),
        ({"properties": {f"k{number}": {} for number in range(content.LARGE_BYTES)}}, True),
        (nested(200), False),
    ],
)
def test_what_is_large(schema: Any, large: bool) -> None:
    assert large == is_large(Shape(tools=[tool(schema)]))
    assert large == is_large(Shape(response_format={"type": "json_schema", "json_schema": {"schema": schema}}))


def test_keys_are_equal_for_equal_shapes_only() -> None:
    tools = [tool({}, "a"), tool({}, "b")]
    shapes = [
        *(Shape(tools=tools), Shape(tools=tools[:1]), Shape(tools=tools[::-1]), Shape(tools=tools, thinking=True)),
        *(Shape(tools=tools, named="a"), Shape(tools=tools, named="null"), Shape(tools=tools, tool_choice="required")),
        *(Shape(tools=tools, parallel=False), Shape(tools=tools, strict_only=True), Shape(tools=tools, after_calls=True)),
        *(Shape(tools=tools, tool_paths=["x", "y"]), Shape(tools=tools, response_format={"type": "json_object"})),
        *(
            Shape(tools=[tool(with_a({"const": value}))])
            for value in (1, 1.0, "1", True, None, 10**40, [], {}, "\ud800", "\udfff")
        ),
    ]
    keys = [key_of(shape) for shape in shapes]

    assert None not in keys
    assert len(shapes) == len(set(keys))
    assert keys[0] == key_of(Shape(tools=[tool({}, "a"), tool({}, "b")]))


def test_what_is_nested_too_deep_has_no_key(byte: Speaker) -> None:
    shape = Shape(tools=[tool(nested(100_000))])

    assert key_of(shape) is None
    assert byte.grammar(shape).unenforced == ("tools[0].function.parameters",)


def test_the_log_has_what_was_made_once_and_no_names(byte: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    log = structlog.testing.CapturingLogger()
    monkeypatch.setattr("server.grammar.factory.log", log)
    factory = byte.factory()
    shape = Shape(
        tools=[tool({"type": "object", "properties": {"k" * 99 + str(n): {"not": {"type": "null"}} for n in range(20)}})]
    )
    grammar = factory.make(shape)
    factory.make(shape)

    assert grammar is not None
    (call,) = log.calls
    entry = call.kwargs
    assert ("debug", ("grammar_made",), 20) == (call.method_name, call.args, entry["num_unenforced"])
    assert len(grammar.structural_tag) == entry["num_bytes"]
    assert entry["milliseconds"] >= 0
    assert "kkk" not in repr(call)  # the names in a schema are the client's words
