"""The arguments of one call: from K3's elements to the pieces of one JSON object.

Role: K3 writes each argument as an element of its own, strings raw and all other types as JSON; a client gets one JSON object.
Invariant: what the methods returned, joined, is a prefix of a valid JSON object at any time and one whole object after `close`,
whatever the model wrote. The format is `json.dumps`'s: `{"city": "Paris", "days": 3}`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from server.parsers.json_stream import JsonStream, escape
from server.parsers.recovery import Recovery

Count = Callable[[Recovery], None]

_MAX_UNDECIDED: Final = 2048  # characters of a typed value that are held back until it is known what they are
_TYPES: Final = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null",
                 "object": "object", "array": "array"}  # fmt: skip
_TYPE_BY_START: Final = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}


class _Value(Protocol):
    """One element's body: `feed` and `close` return what to send."""

    def feed(self, text: str) -> str: ...

    def close(self) -> str: ...


class _StringValue:
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


class _DroppedValue:
    """Text that goes nowhere."""

    __slots__ = ()

    def feed(self, text: str) -> str:
        return ""

    def close(self) -> str:
        return ""


class _TypedValue:
    """JSON, or a string where it turns out to be none.

    Objects and arrays are streamed from their first word or string on; a fault before that, and any fault in a scalar, makes the
    whole text a string. Scalars are held until they end. A value too long to be undecided about is a string.
    """

    __slots__ = ("_count", "_held", "_json", "_start", "_string", "_type")

    def __init__(self, tag: str | None, count: Count) -> None:
        self._type = tag
        self._count = count
        self._held = ""  # read, and nothing sent of it
        self._start = ""  # the first character that is not blank
        self._json = JsonStream()
        self._string: _StringValue | None = None

    def feed(self, text: str) -> str:
        if self._string is not None:
            return self._string.feed(text)
        if self._json.written:
            return self._json.feed(text)
        self._held += text
        if not self._start:
            self._start = self._held.lstrip(" \t\n\r")[:1]
            text = self._held
        if self._start in ("{", "["):
            sent = self._json.feed(text)
            if sent:
                self._held = ""
                return sent
        if self._json.broken or len(self._held) > _MAX_UNDECIDED:
            return self._become_string()
        return ""

    def close(self) -> str:
        if self._string is not None:
            return self._string.close()
        if self._json.written:
            rest = self._json.close()
        else:
            rest = "" if self._start in ("{", "[") else self._json.feed(self._held)
            rest += self._json.close()
            if not self._json.whole:
                return self._become_string() + self.close()
        if self._json.faulty:
            self._count(Recovery.INVALID_JSON)
        elif self._type is not None and self._type != _TYPE_BY_START.get(self._start, "number"):
            self._count(Recovery.WRONG_TYPE)
        return rest

    def _become_string(self) -> str:
        if self._type is not None:
            self._count(Recovery.INVALID_JSON)
        self._string = _StringValue()
        held, self._held = self._held, ""
        return self._string.feed(held) if held else ""


class _ObjectValue:
    """All arguments as one JSON object; what is no object is dropped."""

    __slots__ = ("_count", "_dropped", "_json")

    def __init__(self, count: Count) -> None:
        self._count = count
        self._json = JsonStream()
        self._dropped: bool | None = None  # None: nothing but blanks so far

    @property
    def written(self) -> bool:
        return self._json.written

    def feed(self, text: str) -> str:
        if self._dropped is None and (start := text.lstrip(" \t\n\r")[:1]):
            self._dropped = start != "{"
        return "" if self._dropped else self._json.feed(text)

    def close(self) -> str:
        rest = self._json.close() if self._json.written else ""
        if self._dropped or (self._dropped is not None and (self._json.faulty or not self._json.written)):
            self._count(Recovery.INVALID_JSON)
        return rest


class CallArguments:
    """Elements in, fragments of JSON out."""

    __slots__ = ("_count", "_keys", "_object", "_value")

    def __init__(self, count: Count) -> None:
        self._count = count
        self._keys: set[str] = set()
        self._value: _Value | None = None
        self._object = False  # a JSON body was written

    @property
    def empty(self) -> bool:
        """Whether nothing was sent yet."""
        return not self._keys and not self._object

    def open_argument(self, key: str | None, tag: str | None) -> str:
        """An argument element begins; `tag` is its `type`."""
        fault = Recovery.UNNAMED_ARGUMENT if key is None else self._fault_of(key)
        if key is None or fault is not None:
            self._count(fault or Recovery.UNNAMED_ARGUMENT)
            self._value = _DroppedValue()
            return ""
        type_ = _TYPES.get(tag or "")
        if type_ is None:
            self._count(Recovery.UNTYPED_ARGUMENT)
        self._value = _StringValue() if type_ == "string" else _TypedValue(type_, self._count)
        before = ", " if self._keys else "{"
        self._keys.add(key)
        return f'{before}"{escape(key)}": '

    def open_object(self) -> None:
        """A JSON body begins."""
        if self.empty:
            self._value = _ObjectValue(self._count)
        else:
            self._count(Recovery.MIXED_ARGUMENTS)
            self._value = _DroppedValue()

    def feed(self, text: str) -> str:
        """Text of the open element."""
        return "" if self._value is None else self._value.feed(text)

    def close_element(self) -> str:
        """The open element ends."""
        if self._value is None:
            return ""
        value, self._value = self._value, None
        fragment = value.close()
        if isinstance(value, _ObjectValue):
            self._object = value.written
        return fragment

    def close(self) -> str:
        """The call ends. Raises nothing, whatever is open or missing."""
        fragment = self.close_element()
        if self._object:
            return fragment
        return fragment + ("}" if self._keys else "{}")

    def _fault_of(self, key: str) -> Recovery | None:
        if self._object:
            return Recovery.MIXED_ARGUMENTS
        return Recovery.DUPLICATE_ARGUMENT if key in self._keys else None
