"""A vocabulary without a file: every byte is a token. For the scripted engine and for tests.

Ids 0..255 are bytes; behind them are the special slots of K3 in K3's order and under K3's names.
"""

from __future__ import annotations

from typing import Final

from server.vocabulary.pieces import PieceTable
from server.vocabulary.special_slots import special_slots
from server.vocabulary.utf8 import well_formed

_NUM_BYTES: Final = 256


class ByteVocabulary(PieceTable):
    """One token a byte of UTF-8."""

    def __init__(self) -> None:
        control = special_slots(_NUM_BYTES)
        super().__init__([bytes([value]) for value in range(_NUM_BYTES)] + [name.encode() for name in control], control)

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """As in `Vocabulary`. Surrogate pairs are joined and lone surrogates read as U+FFFD."""
        text = self._beginning(text, most)
        try:
            return list(text.encode())
        except UnicodeEncodeError:
            return list(well_formed(text).encode())
