"""Kimi K3's markup: elements that are opened and closed by control tokens.

`<|open|>tag key="value"<|sep|>` … `<|close|>tag<|sep|>`; a message has `<|end_of_msg|>` behind it. Tag names, keys and values are
ordinary text. Nothing separates the elements.
An image is `<|media_begin|>image WxH<|media_content|>`, a `<|media_pad|>` for each of its tokens, and `<|media_end|>`.
Role: the only writer of K3's structure. Invariant: text passed in is never a control segment.
"""

from __future__ import annotations

from typing import Final

from server.images import Image
from server.prompts.segments import Segment

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


class Writer:
    """Collects the segments of one prompt. `images`: those among them, in order, each with its number of pads."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.images: list[tuple[Image, int]] = []

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

    def image(self, image: Image, num_pads: int) -> None:
        """An image that takes `num_pads` tokens; its size is told as it was sent, not as the model is shown it."""
        self.segments += (_MEDIA_BEGIN, Segment(f"image {image.width}x{image.height}"), _MEDIA_CONTENT)
        self.segments += (Segment(_MEDIA_PAD, control=True, times=num_pads), _MEDIA_END)
        self.images.append((image, num_pads))

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
