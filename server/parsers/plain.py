"""Models without channels: every ordinary token is content.

Role: the parser for engines and models whose answers have no structure that the gateway must read. Control tokens, the end token
among them, are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from server.events import ContentDelta, Event, Finish, FinishReason
from server.vocabulary.base import Vocabulary
from server.vocabulary.utf8 import Utf8Decoder


class PlainParser:
    """Text straight through."""

    __slots__ = ("_control_ids", "_decoder", "_pending", "_pieces", "_texts")

    def __init__(self, vocabulary: Vocabulary, texts: Mapping[int, str]) -> None:
        """`texts`: the `whole_texts` of `vocabulary`."""
        self._texts = texts
        self._pieces = vocabulary.pieces
        self._control_ids = vocabulary.control_ids
        self._decoder = Utf8Decoder()
        self._pending = False

    @property
    def num_reasoning_tokens(self) -> int:
        return 0

    @property
    def recoveries(self) -> dict[str, int]:
        return {}

    def feed(self, token_ids: Sequence[int]) -> list[Event]:
        texts: list[str] = []
        for token_id in token_ids:
            text = None if self._pending else self._texts.get(token_id)
            texts.append(self._decode(token_id) if text is None else text)
        joined = "".join(texts)
        return [ContentDelta(joined)] if joined else []

    def finish(self, reason: str) -> list[Event]:
        rest = self._decoder.flush()
        finish = Finish(FinishReason.LENGTH if reason == "length" else FinishReason.STOP)
        return [ContentDelta(rest), finish] if rest else [finish]

    def _decode(self, token_id: int) -> str:
        if token_id in self._control_ids:
            text = self._decoder.flush()
        elif 0 <= token_id < len(self._pieces):
            text = self._decoder.feed(self._pieces[token_id])
        else:
            return ""
        self._pending = bool(self._decoder.pending)
        return text
