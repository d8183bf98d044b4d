"""Requests with images that no two of them share, and that cost their sender next to nothing."""

from __future__ import annotations

import base64
import itertools
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_RGB_OF_8_BITS: Final = b"\x08\x02\0\0\0"
_PLACE: Final = "place of an image"


@dataclass(slots=True, frozen=True)
class Picture:
    """A PNG of `width` x `height` pixels and about `num_bytes` bytes: noise as far as they go, one colour below."""

    width: int
    height: int
    num_bytes: int

    def beginning(self) -> bytes:
        """The file but for its `ending`. Has a multiple of 3 bytes, so that in base64, too, the two are put side by side."""
        num_row_bytes = 3 * self.width
        num_noisy = min(self.height, self.num_bytes // (num_row_bytes + 1))
        rows = b"".join(b"\0" + os.urandom(num_row_bytes) for _ in range(num_noisy))
        rows += (b"\0" + b"\x80" * num_row_bytes) * (self.height - num_noisy)
        header = self.width.to_bytes(4, "big") + self.height.to_bytes(4, "big") + _RGB_OF_8_BITS
        file = _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows, 6))
        return file + _chunk(b"tEXt", b"n\0" + b"x" * (-(len(file) + 14) % 3))


def ending(number: int) -> bytes:
    """The end of a file, another one for each number."""
    return _chunk(b"tEXt", b"number\0%020d" % number) + _chunk(b"IEND", b"")


class Bodies:
    """Bodies of chat requests with `num_images` images each. `next` may be called from several threads."""

    def __init__(self, picture: Picture, num_images: int, max_tokens: int, num_kinds: int = 4) -> None:
        self._beginnings = [base64.b64encode(picture.beginning()) for _ in range(num_kinds)]
        self._numbers = itertools.count()
        self._num_images = num_images
        parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_PLACE}"}}] * num_images
        text = {"type": "text", "text": "What do these show?"}
        wanted = {
            "model": "default",
            "messages": [{"role": "user", "content": [text, *parts]}],
            "max_tokens": max_tokens,
            "stream": True,
            "ignore_eos": True,
        }
        self._between = [piece.encode() for piece in json.dumps(wanted).split(_PLACE)]

    def next(self) -> list[bytes]:
        """The pieces of a body that is like no other."""
        return list(self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        for between in self._between[:-1]:
            number = next(self._numbers)
            yield between
            yield self._beginnings[number % len(self._beginnings)]
            yield base64.b64encode(ending(number))
        yield self._between[-1]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
