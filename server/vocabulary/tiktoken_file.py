"""Kimi K3's vocabulary: a `tiktoken.model` merge table and the special slots behind it.

Role: one implementation of `base.Vocabulary`. Byte-pair encoding itself is the `tiktoken` library's.
Must not: read the `tokenizer_config.json` beside the file (see `special_slots`).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import tiktoken

from server.vocabulary.pieces import PieceTable
from server.vocabulary.special_slots import special_slots

NUM_BASE_TOKENS: Final = 163_584

_PATTERN: Final = "|".join(
    (
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""How text is cut before merging. Source: the checkpoint's tokeniser; the trained model depends on every character."""

_WINDOW_CHARS: Final = 400_000
_RUN_CHARS: Final = 25_000
_SHORT_RUNS: Final = re.compile(rf"(?:\S{{1,{_RUN_CHARS}}}+(?!\S)|\s{{1,{_RUN_CHARS}}}+(?!\s))*+")


class KimiVocabulary(PieceTable):
    """Base tokens 0..163,583 from the merge table, then 256 special slots."""

    def __init__(self, ranks: Mapping[bytes, int]) -> None:
        """`ranks`: bytes of each base token -> its id. Raises `ValueError` unless the ids are 0..163,583."""
        pieces = [b""] * NUM_BASE_TOKENS
        for piece, rank in ranks.items():
            if not 0 <= rank < NUM_BASE_TOKENS:
                raise ValueError(f"rank `{rank}` is outside K3's base vocabulary of {NUM_BASE_TOKENS} tokens")
            pieces[rank] = piece
        if len(ranks) != NUM_BASE_TOKENS or not all(pieces):
            raise ValueError(f"{len(ranks)} merges where K3's base vocabulary has {NUM_BASE_TOKENS}")
        self._bpe = tiktoken.Encoding("kimi_k3", pat_str=_PATTERN, mergeable_ranks=dict(ranks), special_tokens={})
        control = special_slots(NUM_BASE_TOKENS)
        super().__init__(pieces + [name.encode() for name in control], control)

    @classmethod
    def from_file(cls, path: Path) -> KimiVocabulary:
        """The vocabulary of a `tiktoken.model`: one line a token, its bytes in base64 and its id.

        Raises `FileNotFoundError`, and `ValueError` for a file that is no K3 merge table.
        """
        ranks: dict[bytes, int] = {}
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            try:
                piece, rank = line.split()
                ranks[base64.b64decode(piece, validate=True)] = int(rank)
            except (ValueError, binascii.Error):
                raise ValueError(f"`{path}` line {number} is not a base64 piece and its rank") from None
        try:
            return cls(ranks)
        except ValueError as error:
            raise ValueError(f"`{path}` is not Kimi K3's merge table: {error}") from None

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """As in `Vocabulary`. Surrogate pairs are joined and lone surrogates read as U+FFFD. May be called from any thread."""
        token_ids: list[int] = []
        for chunk in chunks(text):
            token_ids += self._bpe.encode_ordinary(chunk)
            if most is not None and len(token_ids) > most:
                break
        return token_ids


def chunks(text: str) -> Iterator[str]:
    """`text` cut where the checkpoint's tokeniser cuts it.

    That is after each 400,000 characters, and within these after each 25,000 characters of a run all blank or without a blank.
    """
    if len(text) <= _RUN_CHARS:
        yield text
        return
    for begin in range(0, len(text), _WINDOW_CHARS):
        window = text[begin : begin + _WINDOW_CHARS]
        start = 0
        while True:
            short = _SHORT_RUNS.match(window, start)
            long_run = short.end() if short else start
            if long_run == len(window):
                yield window[start:]
                break
            yield window[start : long_run + _RUN_CHARS]
            start = long_run + _RUN_CHARS
