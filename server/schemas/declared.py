"""The tools of one request: their names, the types of their arguments, and whether a call fits.

Role: what parsers and the policy for calls ask. Invariant: costs next to nothing until something is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from server.quoting import shown
from server.schemas.library import KnownSchema, SchemaLibrary

_ANYTHING: Final[Mapping[str, frozenset[str]]] = {}


class DeclaredTools:
    """Tools by name, each with the schema of its arguments; None where anything goes."""

    __slots__ = ("_schemas", "names")

    def __init__(self, schemas: Mapping[str, KnownSchema | None]) -> None:
        self._schemas = schemas
        self.names = tuple(schemas)

    @classmethod
    def of(cls, tools: Iterable[tuple[str, Mapping[str, Any]]], library: SchemaLibrary) -> DeclaredTools:
        """`tools`: each with its path in the request, in the API's form. Raises `InvalidRequestError` for a mistake in a schema.

        Takes 4 µs a tool whose schema the library knows, and some 3 µs a keyword of one that it does not.
        """
        schemas: dict[str, KnownSchema | None] = {}
        for param, tool in tools:
            function = tool["function"]
            parameters = function.get("parameters")
            schemas[function["name"]] = library.parameters(parameters, f"{param}.function.parameters") if parameters else None
        return cls(schemas)

    def types_of(self, name: str) -> Mapping[str, frozenset[str]]:
        """Types of JSON by argument; a key is absent where anything goes, as everything is of an undeclared tool."""
        schema = self._schemas.get(name)
        return _ANYTHING if schema is None else schema.argument_types

    def error_in(self, name: str, arguments: str) -> str | None:
        """What is wrong with a call with these `arguments`, JSON as text; None where it fits.

        The tool's schema is compiled at its first call, by any request: 10 µs for a small one, 20 ms at most. A check takes 5 µs
        and more, 20 ms at most.
        """
        if name not in self._schemas:
            return f"undeclared tool `{shown(name)}`"
        schema = self._schemas[name]
        return None if schema is None or schema.validator is None else schema.validator.errors_in(arguments)
