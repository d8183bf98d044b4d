"""Kimi K3's markup: elements that are opened and closed by control tokens.

`<|open|>tag key="value"<|sep|>` … `<|close|>tag<|sep|>`; a message has `<|end_of_msg|>` behind it. Tag names, keys and values are
ordinary text. Nothing separates the elements.
An image is `<|media_begin|>image WxH<|media_content|>`, a `<|media_pad|>` for each of its tokens, and `<|media_end|>`.
Role: the only writer of K3's structure. Invariant: text passed in is never a control segment.
"""

from __future__ import annotations

from typing import Final

from server.images import Image
from server.prompts.segments import Piece, Run, Segment, segments_in

_OPEN: Final = Segment("<|open|>", control=True)
_CLOSE: Final = Segment("<|close|>", control=True)
_SEP: Final = Segment("<|sep|>", control=True)
_END_OF_MESSAGE: Final = Segment("<|end_of_msg|>", control=True)
_MEDIA_BEGIN: Final = Segment("<|media_begin|>", control=True)
_MEDIA_CONTENT: Final = Segment("<|media_content|>", control=True)
_MEDIA_PAD: Final = "<|media_pad|>"
_MEDIA_END: Final = Segment("<|media_end|>", control=True)
_ASSIGN: Final = Segment('="')
_QUOTE: Final = Segment('"')

CONTROL: Final = tuple(segment.text for segment in (_OPEN, _CLOSE, _SEP, _END_OF_MESSAGE))
"""The control tokens used."""

MEDIA_CONTROL: Final = (_MEDIA_BEGIN.text, _MEDIA_CONTENT.text, _MEDIA_PAD, _MEDIA_END.text)
"""Those around images, in the order in which they come; a vocabulary may lack them."""

STRUCTURAL_TEXTS: Final = (
    *("message", "think", "response", "tools", "call", "argument", "json"),
    *(" role", " name", " type", " tool", " index", " key", '="', '"'),
    *("system", "user", "assistant", "tool", "1", "2", "string", "number", "boolean", "null", "object", "array"),
)
"""Ordinary texts that the markup is made of, worth encoding once."""


_TAGS: Final = ("message", "think", "response", "tools", "call", "argument", "json")
_FIRST_KEYS: Final = (("message", "role"), ("call", "tool"), ("argument", "key"), ("json", "type"))
_ROLES: Final = ("system", "user", "assistant")


def _begin(tag: str) -> tuple[Segment, ...]:
    return _OPEN, Segment(tag)


def _key(key: str) -> tuple[Segment, ...]:
    return Segment(f" {key}"), _ASSIGN


def _attribute(key: str, value: str) -> tuple[Segment, ...]:
    return *_key(key), Segment(value), _QUOTE


def _end(tag: str) -> tuple[Segment, ...]:
    return _CLOSE, Segment(tag), _SEP


_BEGINS: Final = {(tag, key): Run((*_begin(tag), *_key(key))) for tag, key in _FIRST_KEYS}
_NEXT: Final = {key: Run((_QUOTE, *_key(key))) for key in ("name", "type", "tool", "index")}
_LAST: Final = Run((_QUOTE, _SEP))
_WHOLE: Final[dict[tuple[str, tuple[tuple[str, str], ...]], Run]] = {
    **{(tag, ()): Run((*_begin(tag), _SEP)) for tag in _TAGS},
    **{("message", (("role", role),)): Run((*_begin("message"), *_attribute("role", role), _SEP)) for role in _ROLES},
}
_ENDS: Final = {tag: Run(_end(tag)) for tag in _TAGS}
_MESSAGE_END: Final = Run((*_end("message"), _END_OF_MESSAGE))

RUNS: Final = (*_BEGINS.values(), *_NEXT.values(), _LAST, *_WHOLE.values(), *_ENDS.values(), _MESSAGE_END)
"""Everything that `Writer` says in one go. A long conversation has some ten thousand of these."""


class Writer:
    """Collects the pieces of one prompt. `images`: those among them, in order, each with its number of pads."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.images: list[tuple[Image, int]] = []

    @property
    def segments(self) -> list[Segment]:
        """All segments, one by one."""
        return list(segments_in(self.pieces))

    def open(self, tag: str, *attributes: tuple[str, str]) -> None:
        """Begin an element. `attributes`: (key, value), in order; values are escaped here."""
        pieces = self.pieces
        if (whole := _WHOLE.get((tag, attributes))) is not None:
            pieces.append(whole)
            return
        (first, value), *others = attributes
        pieces.append(_BEGINS[tag, first])
        self._value(value)
        for key, value in others:
            pieces.append(_NEXT[key])
            self._value(value)
        pieces.append(_LAST)

    def _value(self, value: str) -> None:
        self.text(value.replace("&", "&amp;").replace('"', "&quot;"))

    def text(self, text: str) -> None:
        """Text inside an element, as it is. Two calls are two segments."""
        if text:
            self.pieces.append(text)

    def image(self, image: Image, num_pads: int) -> None:
        """An image that takes `num_pads` tokens; its size is told as it was sent, not as the model is shown it."""
        self.pieces += (_MEDIA_BEGIN, f"image {image.width}x{image.height}", _MEDIA_CONTENT)
        self.pieces += (Segment(_MEDIA_PAD, control=True, times=num_pads), _MEDIA_END)
        self.images.append((image, num_pads))

    def close(self, tag: str) -> None:
        """End an element."""
        self.pieces.append(_ENDS[tag])

    def element(self, tag: str, *attributes: tuple[str, str], text: str) -> None:
        """A whole element with nothing but text in it."""
        self.open(tag, *attributes)
        self.text(text)
        self.close(tag)

    def close_message(self) -> None:
        """End a message."""
        self.pieces.append(_MESSAGE_END)
