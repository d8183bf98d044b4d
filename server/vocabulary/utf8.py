"""Text out of bytes that arrive in pieces: a token's bytes may end in the middle of a character.

Invariant: whatever the pieces, what `feed` and the final `flush` return, joined, is `whole.decode("utf-8", "replace")`; a
character that is still incomplete is held back (3 bytes at most), never emitted broken.
"""

from __future__ import annotations

import codecs

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Utf8Decoder:
    """One stream of bytes. Invalid input becomes U+FFFD, one for each maximal subpart, as Unicode recommends."""

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = _new_decoder("replace")

    @property
    def pending(self) -> bytes:
        """The bytes held back, the beginning of a character."""
        return self._decoder.getstate()[0]

    def feed(self, data: bytes) -> str:
        """The text that `data` completes; may be empty."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """U+FFFD if an incomplete character is held back, else nothing. The decoder is then as new."""
        return self._decoder.decode(b"", final=True)


def well_formed(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced by U+FFFD, so that it can be written as UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
