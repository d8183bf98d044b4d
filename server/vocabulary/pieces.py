"""A vocabulary as a table of pieces: what all implementations of `base.Vocabulary` have in common, which is all but encoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class PieceTable:
    """Token id -> bytes, and which of the ids are control tokens."""

    def __init__(self, pieces: Sequence[bytes], control: Mapping[str, int]) -> None:
        self._pieces = pieces
        self._control = control
        self._control_ids = frozenset(control.values())
        self._longest = max((len(piece) for i, piece in enumerate(pieces) if i not in self._control_ids), default=0)

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

    @property
    def longest_piece(self) -> int:
        return self._longest

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join([self._pieces[token_id] for token_id in token_ids]).decode("utf-8", "replace")

    def _beginning(self, text: str, most: int | None) -> str:
        """As much of `text` as is needed for more than `most` tokens, whatever they are: a character has a byte or more."""
        return text if most is None else text[: (most + 1) * self._longest]
