"""Regular expressions in schemas.

Role: tells a mistake from what is only beyond the engine. Invariant: what is checked is checked in time linear in the text;
patterns with look-around or back-references can't be, and are taken without being held to.
"""

from __future__ import annotations

import re
from typing import Any, Final

import jsonschema_rs

OPTIONS: Final = jsonschema_rs.RegexOptions(size_limit=50_000, dfa_size_limit=1_000_000)
"""Bytes that a compiled pattern may take, and its cache while it runs."""

MAX_PATTERN_CHARS: Final = 4096

# Python knows look-around, back-references and stray braces; a few forms of JavaScript it writes in its own way.
_IN_PYTHON: Final = (
    (r"\(\?<(?![=!])", "(?P<"),
    (r"\\k<(\w+)>", r"(?P=\1)"),
    (r"\[\^\]", r"[\\s\\S]"),
    (r"(\\[dDsSwW])-(?!\])", r"\1\\-"),
    (r"\\[pP]\{[^{}]*\}", r"\\w"),
    (r"\\u\{[0-9a-fA-F]+\}|\\c[A-Za-z]", "x"),
)


def is_enforced(pattern: str) -> bool:
    """Whether the linear engine can hold a text to `pattern`. Takes 10 to 400 µs."""
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=OPTIONS, offline=True)
    except ValueError:  # what the engine raises for what it can't read
        return False
    return True


def is_pattern(pattern: str) -> bool:
    """Whether `pattern` is a regular expression to anyone: the linear engine, or one that knows more, or older, forms."""
    if is_enforced(pattern):
        return True
    if len(pattern) > MAX_PATTERN_CHARS:
        return False
    for in_javascript, in_python in _IN_PYTHON:
        pattern = re.sub(in_javascript, in_python, pattern)
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    except Warning:  # "possible nested set": readable all the same
        return True
    return True


def without_unenforced(schema: Any) -> Any:
    """A copy of a well-formed schema without the patterns that the engine can't hold. Only on keys: the whole map goes."""
    if isinstance(schema, list):
        return [without_unenforced(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {key: without_unenforced(value) for key, value in schema.items()}
    if isinstance(pattern := copy.get("pattern"), str) and not is_enforced(pattern):
        del copy["pattern"]
    keys = copy.get("patternProperties")
    if isinstance(keys, dict) and not all(map(is_enforced, keys)):
        for word in ("patternProperties", "additionalProperties", "unevaluatedProperties"):
            copy.pop(word, None)
    return copy
