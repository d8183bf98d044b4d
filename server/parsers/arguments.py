"""The arguments of one call: from K3's elements to the pieces of one JSON object.

Role: K3 writes each argument as an element of its own, strings raw and all other types as JSON; a client gets one JSON object.
Invariant: what the methods returned, joined, is a prefix of a valid JSON object at any time and one whole object after `close`,
whatever the model wrote. The format is `json.dumps`'s: `{"city": "Paris", "days": 3}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from server.parsers.argument_value import Count, DroppedValue, ObjectValue, Types, Value, value_of
from server.parsers.json_stream import escape
from server.parsers.recovery import Recovery

_ANY: Final[Mapping[str, Types]] = {}


class CallArguments:
    """Elements in, fragments of JSON out."""

    __slots__ = ("_count", "_keys", "_object", "_types", "_value")

    def __init__(self, count: Count, types: Mapping[str, Types] = _ANY) -> None:
        """`types`: key -> the JSON Schema types that the value may have; any where the key is absent."""
        self._count = count
        self._types = types
        self._keys: set[str] = set()
        self._value: Value | None = None
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
            self._value = DroppedValue()
            return ""
        self._value = value_of(tag, self._types.get(key), self._count)
        before = ", " if self._keys else "{"
        self._keys.add(key)
        return f'{before}"{escape(key)}": '

    def open_object(self) -> None:
        """A JSON body begins."""
        if self.empty:
            self._value = ObjectValue(self._count)
        else:
            self._count(Recovery.MIXED_ARGUMENTS)
            self._value = DroppedValue()

    def feed(self, text: str) -> str:
        """Text of the open element."""
        return "" if self._value is None else self._value.feed(text)

    def close_element(self) -> str:
        """The open element ends."""
        if self._value is None:
            return ""
        value, self._value = self._value, None
        fragment = value.close()
        if isinstance(value, ObjectValue):
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
