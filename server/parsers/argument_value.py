"""The value of one argument: K3's text in, the text of a JSON value out.

Role: below `arguments.py`. K3 tags each value with a type, strings raw and all others as JSON; what a tool takes is said by its
schema. Where the two differ, what was written decides, as far as that is safe: a text tagged as a string that is JSON of a type
that the schema has is that JSON (`3` for an integer); a text tagged otherwise is a string where the schema has only that for it.
Invariant: what the methods returned, joined, is a prefix of a JSON value at any time, and the whole value after `close`.
Characters are kept as they were written; only what is no JSON is repaired. What is held back is bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, Protocol

from server.parsers.json_stream import JsonStream, escape
from server.parsers.recovery import Recovery

Count = Callable[[Recovery], None]
Types = frozenset[str]

_MAX_UNDECIDED: Final = 2048  # characters of a value that are held back until it is known what they are
_KINDS: Final = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null",
                 "object": "object", "array": "array"}  # fmt: skip
_KIND_BY_START: Final = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}
_BLANKS: Final = " \t\n\r"
_INTEGER: Final = re.compile(r"-?[0-9]+")


class Value(Protocol):
    """One element's body: `feed` and `close` return what to send."""

    def feed(self, text: str) -> str: ...

    def close(self) -> str: ...


def value_of(tag: str | None, types: Types | None, count: Count) -> Value:
    """The reader of an argument's body. `tag`: the type that the model wrote; `types`: those of the schema, None for any."""
    kind = _KINDS.get(tag or "")
    if kind is None:
        count(Recovery.UNTYPED_ARGUMENT)
    if kind == "string" and (not types or "string" in types):
        return StringValue()
    if not types or kind == "null":  # `null` for a string is told as it is: the text "null" would be another value
        return _JsonValue(kind, count, None, strict=False)
    kinds = {_KINDS[type_] for type_ in types if type_ in _KINDS}
    strict = kind == "string" or (kind not in kinds and "string" in kinds)
    return _JsonValue(kind, count, types, strict=strict)


class StringValue:
    """Raw text, sent as it comes."""

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        self._begun = False

    def feed(self, text: str) -> str:
        if self._begun:
            return escape(text)
        self._begun = True
        return '"' + escape(text)

    def close(self) -> str:
        return '"' if self._begun else '""'


class DroppedValue:
    """Text that goes nowhere."""

    __slots__ = ()

    def feed(self, text: str) -> str:
        return ""

    def close(self) -> str:
        return ""


class _JsonValue:
    """JSON, or a string where it turns out to be none.

    Objects and arrays are streamed from their first word or string on; a fault before that, and any fault in a scalar, makes the
    whole text a string. Scalars are held until they end. A value too long to be undecided about is a string. `strict`: the tag is
    no reason to take it for JSON; it must be faultless up to the decision, and of one of `types`.
    """

    __slots__ = ("_count", "_held", "_json", "_kind", "_start", "_strict", "_string", "_types")

    def __init__(self, kind: str | None, count: Count, types: Types | None, *, strict: bool) -> None:
        self._kind = kind
        self._count = count
        self._types = types
        self._strict = strict
        self._held = ""  # read, and nothing sent of it
        self._start = ""  # the first character that is not blank
        self._json = JsonStream()
        self._string: StringValue | None = None

    def feed(self, text: str) -> str:
        if self._string is not None:
            return self._string.feed(text)
        if self._json.written:
            return self._json.feed(text)
        self._held += text
        if not self._start:
            self._start = self._held.lstrip(_BLANKS)[:1]
            text = self._held
            if self._start and self._strict and not self._may_be(_KIND_BY_START.get(self._start, "number")):
                return self._become_string()
        if self._start in ("{", "["):
            return self._feed_undecided(text)
        return self._become_string() if len(self._held) > _MAX_UNDECIDED else ""

    def close(self) -> str:
        if self._string is not None:
            return self._string.close()
        if self._json.written:
            rest = self._json.close()
            self._told(_KIND_BY_START[self._start])
            return rest
        scalar = "" if self._start in ("{", "[") else self._scalar()
        return scalar or self._become_string() + self.close()

    def _feed_undecided(self, text: str) -> str:
        """More of an object or array of which nothing was sent. By characters: the decision must not depend on splits."""
        for position, character in enumerate(text):
            if sent := self._json.feed(character):
                if self._strict and self._json.faulty:
                    break
                self._held = ""
                return sent + self._json.feed(text[position + 1 :])
            if self._json.broken:
                break
        else:
            if len(self._held) <= _MAX_UNDECIDED:
                return ""
        return self._become_string()

    def _scalar(self) -> str:
        """The value that was held back, if it is one; else an empty string."""
        text = self._json.feed(self._held) + self._json.close()
        kind = _KIND_BY_START.get(self._start, "number")
        if not self._json.whole or (self._strict and (self._json.faulty or not self._fits(kind, text))):
            return ""
        if self._types and kind == "string" and "string" not in self._types and not self._json.faulty:
            unquoted: str = json.loads(text)
            if self._is_scalar(unquoted):
                self._count(Recovery.COERCED_VALUE)
                return unquoted.strip(_BLANKS)
        self._told(kind)
        return text

    def _is_scalar(self, text: str) -> bool:
        """Whether `text` is the JSON of a scalar, no string, that the schema has."""
        stream = JsonStream()
        stream.feed(text)
        stream.close()
        kind = _KIND_BY_START.get(text.strip(_BLANKS)[:1], "number")
        return (
            stream.whole and not stream.faulty and kind in ("number", "boolean", "null") and self._fits(kind, text.strip(_BLANKS))
        )

    def _may_be(self, kind: str) -> bool:
        """Whether the schema has values of `kind`."""
        return not self._types or kind in self._types or (kind == "number" and "integer" in self._types)

    def _fits(self, kind: str, text: str) -> bool:
        """Whether the schema has the scalar `text`. A number with a fraction or an exponent is not taken for an integer."""
        if kind == "number" and self._types and "number" not in self._types:
            return "integer" in self._types and _INTEGER.fullmatch(text) is not None
        return self._may_be(kind)

    def _told(self, kind: str) -> None:
        """JSON of `kind` was delivered: count what is odd about it."""
        if self._json.faulty:
            self._count(Recovery.INVALID_JSON)
        if self._strict and self._kind == "string":
            self._count(Recovery.COERCED_VALUE)
        elif self._kind is not None and self._kind != kind and not self._json.faulty:
            self._count(Recovery.WRONG_TYPE)

    def _become_string(self) -> str:
        if not self._strict and self._kind is not None:
            self._count(Recovery.INVALID_JSON)
        elif self._strict and self._kind not in (None, "string"):
            self._count(Recovery.COERCED_VALUE)
        self._string = StringValue()
        held, self._held = self._held, ""
        return self._string.feed(held) if held else ""


class ObjectValue:
    """All arguments as one JSON object; what is no object is dropped."""

    __slots__ = ("_count", "_dropped", "_json")

    def __init__(self, count: Count) -> None:
        self._count = count
        self._json = JsonStream()
        self._dropped: bool | None = None  # None: nothing but blanks so far

    @property
    def written(self) -> bool:
        """Whether something was sent."""
        return self._json.written

    def feed(self, text: str) -> str:
        if self._dropped is None and (start := text.lstrip(_BLANKS)[:1]):
            self._dropped = start != "{"
        return "" if self._dropped else self._json.feed(text)

    def close(self) -> str:
        rest = self._json.close() if self._json.written else ""
        if self._dropped or (self._dropped is not None and (self._json.faulty or not self._json.written)):
            self._count(Recovery.INVALID_JSON)
        return rest
