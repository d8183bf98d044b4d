"""The tools of a request, asked about what the model calls."""

from __future__ import annotations

from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.schemas import library as library_module
from server.schemas.declared import DeclaredTools
from server.schemas.library import SchemaLibrary


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    ("tools[0]", tool("weather", parameters=CITY)),
    ("tools[1]", tool("now")),
    ("messages[0].tools[0]", tool("any", parameters=None)),
]


def test_calls_are_held_to_their_tool() -> None:
    tools = DeclaredTools.of(TOOLS, SchemaLibrary())

    assert ("weather", "now", "any") == tools.names
    assert {"city": frozenset({"string"})} == tools.types_of("weather")
    assert tools.error_in("weather", '{"city": "Rome"}') is None
    assert '"city" is a required property' == tools.error_in("weather", "{}")
    assert "`city`: 3 is not of type" in (tools.error_in("weather", '{"city": 3}') or "")


def test_tools_without_parameters_take_anything() -> None:
    tools = DeclaredTools.of(TOOLS, SchemaLibrary())

    for name in ("now", "any"):
        assert {} == tools.types_of(name)
        assert tools.error_in(name, '{"x": 1}') is None


def test_an_undeclared_tool_is_named() -> None:
    tools = DeclaredTools.of(TOOLS, SchemaLibrary())

    assert "undeclared tool `wether`" == tools.error_in("wether", "{}")
    assert {} == tools.types_of("wether")


def test_a_mistake_has_the_path_of_its_tool() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        DeclaredTools.of([("messages[3].tools[7]", tool("f", parameters={"properties": {"a": {"type": "x"}}}))], SchemaLibrary())

    assert "messages[3].tools[7].function.parameters.properties.a.type" == caught.value.param


def test_nothing_is_compiled_before_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    class Counted(library_module.SchemaValidator):
        def __init__(self, document: Any) -> None:
            compiled.append(document.root)
            super().__init__(document)

    monkeypatch.setattr(library_module, "SchemaValidator", Counted)
    library = SchemaLibrary()
    many = [(f"tools[{n}]", tool(f"f{n}", parameters={**CITY, "title": str(n)})) for n in range(500)]
    for _ in range(2):
        tools = DeclaredTools.of(many, library)
        tools.types_of("f7")
    assert [] == compiled

    for _ in range(2):
        DeclaredTools.of(many, library).error_in("f7", "{}")
    assert [{**CITY, "title": "7"}] == compiled
