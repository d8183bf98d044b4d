"""What of an answer the client has: the place from which a new sample goes on.

Role: inside steps 6 and 7, where calls that do not fit are sampled again.
Invariant: a fresh parser that reads `sent` says exactly what the client was sent, and is then where the old one was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Literal

from server.engine.base import EngineDelta, TokenLogprob
from server.events import ContentDelta, Event, ReasoningDelta, ToolCallEnd

Start = Literal["think", "response", "calls"]
_STARTS: Final[dict[type, Start]] = {ReasoningDelta: "think", ContentDelta: "response", ToolCallEnd: "calls"}


def single(delta: EngineDelta) -> Iterator[EngineDelta]:
    """`delta` token by token; the last has what is said of the end. One without tokens stays as it is."""
    last = len(delta.token_ids) - 1
    if last <= 0:
        yield delta
        return
    for number, token_id in enumerate(delta.token_ids):
        logprobs = None if delta.logprobs is None else (delta.logprobs[number],)
        yield EngineDelta((token_id,), logprobs, delta.finish_reason if number == last else None)


class SentAnswer:
    """One choice's tokens, read one at a time, and how many of them the client has something of."""

    def __init__(self, control_ids: AbstractSet[int]) -> None:
        self._control_ids = control_ids
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self.num_sent = 0
        """Tokens that the client has something of."""
        self.start: Start | None = None
        """Where the answer stands behind what was sent; None: at its beginning, or where no grammar begins."""

    def add(self, piece: EngineDelta, events: Sequence[Event], *, between: bool) -> None:
        """The next token, and what was sent because of it. `between`: no call is open behind it."""
        self._token_ids += piece.token_ids
        self._logprobs += piece.logprobs or ()
        if events:
            self.num_sent = len(self._token_ids)
            self.start = _STARTS.get(type(events[-1])) if between else None
            if self.start != "calls" and not self._control_ids.isdisjoint(piece.token_ids):
                self.start = None  # inside a marker, where nothing can begin

    def take_back(self) -> int:
        """Forget what was not sent; the number of tokens."""
        num_tokens = len(self._token_ids) - self.num_sent
        del self._token_ids[self.num_sent :]
        del self._logprobs[self.num_sent :]
        return num_tokens

    def delta(self) -> EngineDelta:
        """All tokens, as one delta that does not end the answer."""
        return EngineDelta(list(self._token_ids), list(self._logprobs) or None)
