"""Kimi K3's markup: elements that are opened and closed by control tokens.

`<|open|>tag key="value"<|sep|>` … `<|close|>tag<|sep|>`; a message has `<|end_of_msg|>` behind it. Tag names, keys and values are
ordinary text. Nothing separates the elements.
Role: the only writer of K3's structure. Invariant: text passed in is never a control segment.
"""

from __future__ import annotations

from typing import Final

from server.prompts.segments import Segment

_OPEN: Final = Segment("<|open|>", control=True)
_CLOSE: Final = Segment("<|close|>", control=True)
_SEP: Final = Segment("<|sep|>", control=True)
_END_OF_MESSAGE: Final = Segment("<|end_of_msg|>", control=True)
_ASSIGN: Final = Segment('="')
_QUOTE: Final = Segment('"')

CONTROL: Final = tuple(segment.text for segment in (_OPEN, _CLOSE, _SEP, _END_OF_MESSAGE))
"""The control tokens used."""

STRUCTURAL_TEXTS: Final = (
    *("message", "think", "response", "tools", "call", "argument", "json"),
    *(" role", " name", " type", " tool", " index", " key", '="', '"'),
    *("system", "user", "assistant", "tool", "1", "2", "string", "number", "boolean", "null", "object", "array"),
)
"""Ordinary texts that the markup is made of, worth encoding once."""


class Writer:
    """Collects the segments of one prompt."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []

    def open(self, tag: str, *attributes: tuple[str, str]) -> None:
        """Begin an element. `attributes`: (key, value), in order; values are escaped here."""
        self.segments += (_OPEN, Segment(tag))
        for key, value in attributes:
            self.segments += (Segment(f" {key}"), _ASSIGN)
            self.text(value.replace("&", "&amp;").replace('"', "&quot;"))
            self.segments.append(_QUOTE)
        self.segments.append(_SEP)

    def text(self, text: str) -> None:
        """Text inside an element, as it is. Two calls are two segments."""
        if text:
            self.segments.append(Segment(text))

    def close(self, tag: str) -> None:
        """End an element."""
        self.segments += (_CLOSE, Segment(tag), _SEP)

    def element(self, tag: str, *attributes: tuple[str, str], text: str) -> None:
        """A whole element with nothing but text in it."""
        self.open(tag, *attributes)
        self.text(text)
        self.close(tag)

    def close_message(self) -> None:
        """End a message."""
        self.close("message")
        self.segments.append(_END_OF_MESSAGE)
