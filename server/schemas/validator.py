"""Whether a value fits a schema.

Role: asked after decoding, about what the model said. Invariant: a call takes some 20 ms at most; what would take longer, or
can't be checked, counts as fitting, because nothing is known against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import jsonschema_rs
import msgspec

from server.quoting import cut
from server.schemas.cost import MAX_VISITS, num_visits
from server.schemas.document import Document, written
from server.schemas.patterns import OPTIONS, without_unenforced
from server.schemas.spelling import respelled

MAX_SUBSCHEMAS: Final = 3000
MAX_HELD_PATTERNS: Final = 100
MAX_SCHEMA_BYTES: Final = 512 * 1024
"""Of a schema that values are held to. Preparing it is one call of native code, during which nobody else runs."""

_MAX_PATTERN_TESTS: Final = 20_000_000
"""Patterns times characters."""

_MAX_VISITS_TO_EXPLAIN: Final = 2000
_MAX_WORDS: Final = 300
_DRAFTS: Final = {
    4: jsonschema_rs.Draft4Validator,
    6: jsonschema_rs.Draft6Validator,
    7: jsonschema_rs.Draft7Validator,
    2019: jsonschema_rs.Draft201909Validator,
    2020: jsonschema_rs.Draft202012Validator,
}


class SchemaValidator:
    """Holds values to one checked schema. `format` is a remark, not a rule: generators use it loosely."""

    __slots__ = ("_document", "_num_patterns", "_validator")

    def __init__(self, document: Document) -> None:
        """Compiles the schema: 10 µs for a small one, up to 20 ms for one of `MAX_SUBSCHEMAS`."""
        self._document = document
        nodes = document.nodes
        self._num_patterns = sum(("pattern" in node) + len(node.get("patternProperties", ())) for node in nodes)
        is_small = len(nodes) <= MAX_SUBSCHEMAS and self._num_patterns <= MAX_HELD_PATTERNS
        self._validator = _compile(document) if is_small else None

    @property
    def holds(self) -> bool:
        """Whether values are checked at all."""
        return self._validator is not None

    def errors(self, value: Any) -> str | None:
        """What is wrong first, with the path where it is, or None."""
        if self._validator is None:
            return None
        visits = num_visits(self._document, value)
        if visits is None or visits > MAX_VISITS:
            return None
        try:
            if self._validator.is_valid(value):
                return None
            if visits > _MAX_VISITS_TO_EXPLAIN:  # an explanation has all branches in it that did not fit
                return "the value does not fit the schema"
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            path = written("", tuple(error.instance_path)).removeprefix(".")
            words = cut(error.message, _MAX_WORDS)
            return f"`{path}`: {words}" if path else words
        except ValueError:  # nested deeper than the engine follows, or half of a surrogate pair
            pass
        return None

    def errors_in(self, text: str) -> str | None:
        """As `errors`, of JSON as text; text that is no JSON is an error, too."""
        if self._num_patterns * len(text) > _MAX_PATTERN_TESTS:
            return None
        try:
            value = msgspec.json.decode(text)
        except msgspec.ValidationError:  # a number that no float can be
            return None
        except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError) as error:
            return f"it is not JSON: {cut(str(error), _MAX_WORDS)}"
        return self.errors(value)


def _compile(document: Document) -> jsonschema_rs.Validator | None:
    """The engine's validator, None where it can't make one."""
    with suppress(RecursionError):  # of values that are nested some hundred levels deep
        for engine, schema in _attempts(document):
            with suppress(ValueError):
                return engine(schema, offline=True, pattern_options=OPTIONS, validate_formats=False)
    return None


def _attempts(document: Document) -> Iterator[tuple[Callable[..., jsonschema_rs.Validator], Any]]:
    """What to give to which engine, one after the other until it is taken."""
    root: Any = document.root
    yield _DRAFTS[document.draft], root
    yield _DRAFTS[document.draft], without_unenforced(root)
    if document.draft == 4:  # which forbids trifles: `required` of nothing, true as a schema, 2.0 as a length
        root = respelled(root, 4)
        yield _DRAFTS[7], root
        yield _DRAFTS[7], without_unenforced(root)
