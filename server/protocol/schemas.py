"""The schemas in a request: checked, and at hand for what the model will say.

Role: after `ChatRequest.check`, which looks at no schema, because a large one takes a while and belongs in a thread.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import msgspec

from server.protocol.chat import ChatRequest
from server.schemas.declared import DeclaredTools
from server.schemas.library import KnownSchema, SchemaLibrary

_LONG_BYTES: Final = 16 * 1024


@dataclass(slots=True, frozen=True)
class RequestSchemas:
    """`tools`: all declared ones. `answer`: what the answer's text is to fit, None where it is free."""

    tools: DeclaredTools
    answer: KnownSchema | None


async def schemas_of(request: ChatRequest, num_body_bytes: int, library: SchemaLibrary) -> RequestSchemas:
    """As `check_schemas`, in a thread where it may take long."""
    if needs_thread(request, num_body_bytes):
        return await asyncio.to_thread(check_schemas, request, library)
    return check_schemas(request, library)


def needs_thread(request: ChatRequest, num_body_bytes: int) -> bool:
    """Whether `check_schemas` may take over 5 ms. Costs nothing for a small body, and 2 ms for megabytes of tools."""
    if num_body_bytes <= _LONG_BYTES:
        return False
    schemas = [request.answer_schema, *(tool["function"].get("parameters") for tool in request.all_tools)]
    try:
        return len(msgspec.json.encode(schemas)) > _LONG_BYTES
    except RecursionError:  # the check says where
        return True


def check_schemas(request: ChatRequest, library: SchemaLibrary) -> RequestSchemas:
    """Checks every schema in a checked request. Raises `InvalidRequestError` with the path of the mistake.

    May run in any thread. Takes some 3 µs a keyword, and 4 µs for a whole schema that the library knows.
    """
    tools = DeclaredTools.of(request.placed_tools(), library)
    schema = request.answer_schema
    answer = None if schema is None else library.schema(schema, "response_format.json_schema.schema")
    return RequestSchemas(tools, answer)
