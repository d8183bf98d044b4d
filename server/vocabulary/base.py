"""What a vocabulary can do, and how bytes become text.

Role: shared by `prompts/` (text -> ids), `parsers/` (ids -> text) and `engine/` (which knows the model's). Bottom layer.
Invariant: text is never encoded to a control token, whatever it spells; a control token is only ever added by its id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Vocabulary(Protocol):
    """The tokens of one model."""

    @property
    def size(self) -> int:
        """Number of token ids, control tokens and unused slots included."""
        ...

    @property
    def pieces(self) -> Sequence[bytes]:
        """Token id -> the bytes that the token stands for, shape (size,). Control tokens have their name as bytes."""
        ...

    @property
    def control(self) -> Mapping[str, int]:
        """Name of each control token, as in `<|open|>` -> its id."""
        ...

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids of all control tokens, unused special slots included."""
        ...

    @property
    def longest_piece(self) -> int:
        """Bytes of the longest ordinary token: a text of n bytes has no fewer than n / `longest_piece` tokens."""
        ...

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """Token ids of `text`, shape (num_tokens,); ordinary tokens only, even where `text` spells a control token.

        With `most`, which bounds the work, the result may be cut off wherever it has more tokens than that.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of whole token sequences; control tokens by name, invalid bytes as U+FFFD."""
        ...
