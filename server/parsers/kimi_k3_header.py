"""The header of a K3 marker: what stands between `<|open|>` or `<|close|>` and `<|sep|>`.

Role: tag name and attributes, as in `call tool="f" index="1"`, in any number of ordinary tokens. In values `&quot;` and `&amp;`
stand for `"` and `&`.
Invariant: it is known at every byte whether this can still be a header; no more than 16 KiB are collected. Outside a quoted value
a `<|sep|>` spelled in ordinary tokens ends the header as the control token does.
Source: Kimi K3's encoding of messages.
"""

from __future__ import annotations

from typing import Final

MAX_HEADER_BYTES: Final = 16 * 1024
_MAX_NAME_BYTES: Final = 32
TAGS: Final = frozenset({"think", "response", "tools", "call", "argument", "json", "message"})

SEPARATOR: Final = b"<|sep|>"
_BLANK: Final = frozenset(b" \t\r\n")
_NAME_BYTES: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_QUOTE: Final = ord('"')
_EQUALS: Final = ord("=")

_IN_NAME, _GAP, _IN_KEY, _AFTER_KEY, _BEFORE_VALUE, _IN_VALUE, _AFTER_VALUE, _IN_SEPARATOR, _ENDED, _IMPOSSIBLE = range(10)


class Header:
    """One header in the making. `opening` tells `<|open|>` from `<|close|>`; `spelled`: its text where it was spelled."""

    __slots__ = ("_key", "_matched", "_name", "_state", "_value", "attributes", "opening", "spelled", "text")

    def __init__(self, *, opening: bool, spelled: bytes = b"") -> None:
        self.opening = opening
        self.spelled = spelled
        self.text = bytearray()  # all that was read
        self.attributes: dict[str, str] = {}
        self._name = bytearray()
        self._key = bytearray()
        self._value = bytearray()
        self._matched = 0  # bytes of a spelled separator
        self._state = _IN_NAME

    @property
    def name(self) -> str:
        """The tag name; empty if there is none."""
        return self._name.decode()

    @property
    def ended(self) -> bool:
        """Whether a spelled separator ended it."""
        return self._state == _ENDED

    @property
    def impossible(self) -> bool:
        """Whether `text` can't be the beginning of a header."""
        return self._state == _IMPOSSIBLE

    @property
    def complete(self) -> bool:
        """Whether nothing but the separator is missing."""
        return self.name in TAGS and self._state in (_IN_NAME, _GAP, _AFTER_VALUE, _IN_SEPARATOR)

    def feed(self, data: bytes) -> int:
        """Read on until `ended` or `impossible`. Returns the number of bytes read."""
        self.text += data
        for position, byte in enumerate(data):
            if self._state == _IN_VALUE and byte != _QUOTE:
                self._value.append(byte)
            else:
                self._state = self._next(byte)
                if self._state >= _ENDED:
                    return position + 1
        if len(self.text) > MAX_HEADER_BYTES:
            self._state = _IMPOSSIBLE
        return len(data)

    def close(self) -> None:
        """The separator's control token came. A value that is still open ends here."""
        if self._state in (_IN_VALUE, _AFTER_VALUE):
            self._store()

    def _next(self, byte: int) -> int:
        """The state after `byte`."""
        state = self._state
        if state == _IN_SEPARATOR:
            return self._in_separator(byte)
        if byte == SEPARATOR[0] and state in (_IN_NAME, _GAP, _AFTER_VALUE) and self._name:
            self._matched = 1
            if state == _AFTER_VALUE:
                self._store()
            return _IN_SEPARATOR
        if state == _IN_VALUE:
            return _AFTER_VALUE
        if state == _AFTER_VALUE:
            return self._after_value(byte)
        if byte in _BLANK:
            return (_GAP if self._name else _IN_NAME, _GAP, _AFTER_KEY, _AFTER_KEY, _BEFORE_VALUE)[state]
        if byte in _NAME_BYTES and state in (_IN_NAME, _GAP, _IN_KEY):
            word = self._name if state == _IN_NAME else self._key
            word.append(byte)
            return _IMPOSSIBLE if len(word) > _MAX_NAME_BYTES else (_IN_NAME if state == _IN_NAME else _IN_KEY)
        if byte == _EQUALS and state in (_IN_KEY, _AFTER_KEY):
            return _BEFORE_VALUE
        if byte == _QUOTE and state == _BEFORE_VALUE:
            return _IN_VALUE
        return _IMPOSSIBLE

    def _after_value(self, byte: int) -> int:
        """After a quote: a blank means that it was the closing one, anything else that it belongs to the value."""
        if byte in _BLANK:
            self._store()
            return _GAP
        self._value += bytes((_QUOTE, byte)) if byte != _QUOTE else b'"'
        return _IN_VALUE if byte != _QUOTE else _AFTER_VALUE

    def _in_separator(self, byte: int) -> int:
        if byte != SEPARATOR[self._matched]:
            return _IMPOSSIBLE
        self._matched += 1
        return _ENDED if self._matched == len(SEPARATOR) else _IN_SEPARATOR

    def _store(self) -> None:
        value = self._value.decode("utf-8", "replace").replace("&quot;", '"').replace("&amp;", "&")
        self.attributes.setdefault(self._key.decode(), value)
        self._key.clear()
        self._value.clear()
