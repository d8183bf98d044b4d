"""A vocabulary without a file: every byte is a token. For the scripted engine and for tests.

Ids 0..255 are bytes; behind them are the special slots of K3 in K3's order and under K3's names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from server.vocabulary.special_slots import special_slots
from server.vocabulary.utf8 import well_formed

_NUM_BYTES: Final = 256


class ByteVocabulary:
    """One token a byte of UTF-8."""

    def __init__(self) -> None:
        self._control = special_slots(_NUM_BYTES)
        self._control_ids = frozenset(self._control.values())
        self._pieces = [bytes([value]) for value in range(_NUM_BYTES)] + [name.encode() for name in self._control]

    @property
    def size(self) -> int:
        return len(self._pieces)

    @property
    def pieces(self) -> Sequence[bytes]:
        return self._pieces

    @property
    def control(self) -> Mapping[str, int]:
        return self._control

    @property
    def control_ids(self) -> frozenset[int]:
        return self._control_ids

    def encode(self, text: str) -> list[int]:
        """As in `Vocabulary`. Surrogate pairs are joined and lone surrogates read as U+FFFD."""
        try:
            return list(text.encode())
        except UnicodeEncodeError:
            return list(well_formed(text).encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join([self._pieces[token_id] for token_id in token_ids]).decode("utf-8", "replace")
