"""Where the reading of a schema begins.

Role: the drafts of JSON Schema end here; what reads schemas behind it knows one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from server.grammar.schema import Part
from server.schemas.document import Document, SchemaFault
from server.schemas.keywords import NEWEST_DRAFT
from server.schemas.spelling import respelled


def root_part(schema: Any, path: str) -> Part:
    """A whole schema, read as the draft that a validator reads it as; one that is not well-formed is read as far as it goes."""
    if isinstance(schema, dict):
        with suppress(SchemaFault, RecursionError):
            draft = Document.of(schema).draft
            return Part(schema if draft == NEWEST_DRAFT else respelled(schema, draft), path)
    return Part(schema, path)
