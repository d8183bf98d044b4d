"""Schemas that requests have brought, by their content: checked once, compiled when first needed.

Role: agents send the same tools with every request; here that costs a look. Invariant: bounded in number and bytes; the least
recently used goes first. Threads may share one.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from server.errors import InvalidRequestError
from server.schemas.argument_types import argument_types
from server.schemas.check import check_parameters, check_schema
from server.schemas.document import Document
from server.schemas.validator import MAX_SCHEMA_BYTES, MAX_SUBSCHEMAS, SchemaValidator


class KnownSchema:
    """One well-formed schema, and what has been made of it."""

    def __init__(self, document: Document, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._document = document

    @cached_property
    def validator(self) -> SchemaValidator | None:
        """Compiled at the first look; None where the schema is too large to hold values to."""
        return SchemaValidator(self._document) if self.num_bytes <= MAX_SCHEMA_BYTES else None

    @cached_property
    def argument_types(self) -> Mapping[str, frozenset[str]]:
        """Types of JSON by declared property; see `argument_types.argument_types`. Of a large schema nothing is known."""
        is_large = self.num_bytes > MAX_SCHEMA_BYTES or len(self._document.nodes) > MAX_SUBSCHEMAS
        return {} if is_large else argument_types(self._document)


class SchemaLibrary:
    """Keeps up to `max_schemas` schemas of up to `max_bytes` of JSON together."""

    def __init__(self, max_schemas: int = 4096, max_bytes: int = 32 * 1024 * 1024) -> None:
        self._max_schemas = max_schemas
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._schemas: OrderedDict[bytes, KnownSchema] = OrderedDict()
        self._lock = threading.Lock()

    def parameters(self, parameters: Mapping[str, Any], param: str = "parameters") -> KnownSchema:
        """A tool's parameters, checked. Raises `InvalidRequestError` with the path of the mistake, below `param`."""
        return self._known(parameters, param, of_tool=True)

    def schema(self, schema: Mapping[str, Any] | bool, param: str = "schema") -> KnownSchema:
        """The schema of an answer, checked. Raises `InvalidRequestError` with the path of the mistake, below `param`."""
        return self._known(schema, param, of_tool=False)

    def _known(self, schema: Any, param: str, *, of_tool: bool) -> KnownSchema:
        try:
            data = msgspec.json.encode(schema)
        except RecursionError:
            raise InvalidRequestError(f"`{param}` is nested too deep; use fewer levels", param=param) from None
        key = hashlib.blake2b(data, digest_size=16, person=b"tool" if of_tool else b"answer").digest()
        with self._lock:
            if (known := self._schemas.get(key)) is not None:
                self._schemas.move_to_end(key)
                return known
        known = KnownSchema((check_parameters if of_tool else check_schema)(schema, param), len(data))
        with self._lock:
            if self._schemas.setdefault(key, known) is known:
                self._num_bytes += known.num_bytes
            while len(self._schemas) > self._max_schemas or self._num_bytes > self._max_bytes:
                _, gone = self._schemas.popitem(last=False)
                self._num_bytes -= gone.num_bytes
        return known
