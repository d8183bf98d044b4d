"""The text of tokens, one at a time: a table where a token is whole characters, a decoder where it is not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from server.vocabulary.base import Vocabulary


def whole_texts(vocabulary: Vocabulary) -> Mapping[int, str]:
    """Token id -> its text, for the ordinary tokens whose bytes are whole characters; never empty strings.

    Made once a vocabulary (50 ms for 163,840 tokens) and kept for the few that a process has.
    """
    return _whole_texts(vocabulary)  # type: ignore[arg-type]  # every object has an identity to hash by


@lru_cache(maxsize=4)
def _whole_texts(vocabulary: Vocabulary) -> Mapping[int, str]:
    control_ids = vocabulary.control_ids
    texts: dict[int, str] = {}
    for token_id, piece in enumerate(vocabulary.pieces):
        if not piece or token_id in control_ids:
            continue
        try:
            texts[token_id] = piece.decode()
        except UnicodeDecodeError:
            continue
    return texts
