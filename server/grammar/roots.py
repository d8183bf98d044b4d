"""Where the reading of a schema begins.

Role: the drafts of JSON Schema end here; what reads schemas behind it knows one.
"""

from __future__ import annotations

from typing import Any

from server.grammar.schema import Part
from server.schemas.document import Document, SchemaFault
from server.schemas.keywords import NEWEST_DRAFT
from server.schemas.spelling import respelled


def root_part(schema: Any, path: str) -> Part:
    """A whole schema, read as the draft that a validator reads it as. Raises `RecursionError` for one that is nested too deep."""
    if not isinstance(schema, dict):
        return Part(schema, path)
    try:
        draft = Document.of(schema).draft
    except SchemaFault:  # it is read as far as it goes
        draft = NEWEST_DRAFT
    return Part(schema if draft == NEWEST_DRAFT else respelled(schema, draft), path)
