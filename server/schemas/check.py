"""Whether a schema that a client sent is well-formed, said with the path of the first mistake.

Role: what `protocol` asks of tools and response formats. In pure Python on purpose: a large schema is checked in a thread, and
others run meanwhile, which a validator in native code would not let them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from server.errors import InvalidRequestError
from server.quoting import shown
from server.schemas.argument_types import root_types
from server.schemas.document import Document, SchemaFault, written
from server.schemas.patterns import is_pattern

MAX_PATTERNS: Final = 1000


def check_schema(schema: Mapping[str, Any] | bool, param: str) -> Document:
    """`schema`, walked. Raises `InvalidRequestError` with the path of the mistake, below `param`.

    For the draft see `Document.of`. Takes some 3 µs for each keyword: over 10 KB or so it belongs in a thread.
    """
    try:
        document = Document.of(schema)
        _check_patterns(document)
    except SchemaFault as fault:
        where = written(param, fault.path)
        raise InvalidRequestError(f"`{where}` is {fault.words}", param=where) from None
    return document


def check_parameters(parameters: Mapping[str, Any], param: str) -> Document:
    """As `check_schema`, of a tool's parameters: they describe an object, because the model gives arguments by name."""
    document = check_schema(parameters, param)
    if "object" not in root_types(document):
        where = f"{param}.type" if "type" in parameters else param
        what = f"`{where}` is `{shown(parameters['type'])}`" if "type" in parameters else f"`{param}` allows no object"
        raise InvalidRequestError(f"{what}; arguments have names, so it must be `object`", param=where)
    return document


def _check_patterns(document: Document) -> None:
    """Raises `SchemaFault` for what is no regular expression in any dialect that is in use."""
    num_patterns = 0
    for node in document.nodes:
        found = [("pattern", node["pattern"])] if "pattern" in node else []
        found += [("patternProperties", name) for name in node.get("patternProperties", ())]
        for key, pattern in found:
            num_patterns += 1
            if num_patterns > MAX_PATTERNS:
                words = f"one pattern more than the {MAX_PATTERNS} that a schema may have; use fewer"
                raise SchemaFault((*document.path_of(node), key), words)
            if not is_pattern(pattern):
                raise SchemaFault((*document.path_of(node), key), f"`{shown(pattern)}`; it must be a regular expression")
