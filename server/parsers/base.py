"""From generated token ids to events: the contract of a parser.

Role: step 7 of a request. One parser object per answer; synchronous and pure.
Invariant: the events, with neighbouring deltas of a kind joined, depend on the token ids only, not on how they were split over
`feed` calls. Work is linear in the tokens; what is held back is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from server.events import Event


class Parser(Protocol):
    """Reads one answer."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of reasoning text so far, markers not counted."""
        ...

    @property
    def recoveries(self) -> dict[str, int]:
        """How often each kind of anomaly was read around, by kind."""
        ...

    def feed(self, token_ids: Sequence[int]) -> list[Event]:
        """Events of the next tokens, shape (num_new_tokens,). May be empty while something is held back."""
        ...

    def finish(self, reason: str) -> list[Event]:
        """The remaining events; the last is `Finish`. `reason`: the engine's, `stop`, `length` or `abort`. Called once."""
        ...
