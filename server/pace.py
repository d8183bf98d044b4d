"""How an answer comes in time: the gaps between its tokens, its decode speed, and what a request waited for.

Role: fed by `choice.py` with each delta of the engine, read once the request has ended. Bottom layer.
Invariant: a delta costs one reading of the clock, one search in a dozen bounds and an addition, whatever is made of it.
Must not: know metrics; these are plain counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

GAP_BOUNDS_S: Final = (0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 1.0)
"""What the gaps between tokens are sorted by. One user's decode speeds of 1 to 1000 tokens/s lie between."""


class Pace:
    """One choice's answer in time, from the wait for its seat on. `now_s`: reads the monotonic clock.

    `gaps`, shape (len(GAP_BOUNDS_S) + 1,): tokens by their gap, which is the time between two outputs of the engine divided by
    the tokens of the later one; `gaps_s`: the sum of those, of what has been gone on from. The first output of each request to
    the engine has no gaps. `waited_s`: for a seat, and for the engine's answers, so far.
    """

    __slots__ = ("_first_s", "_last_s", "_now_s", "_since_s", "gaps", "gaps_s", "waited_s")

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._since_s: float | None = now_s()
        self._first_s: float | None = None
        self._last_s: float | None = None
        self.gaps = [0] * (len(GAP_BOUNDS_S) + 1)
        self.gaps_s = 0.0
        self.waited_s = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether a seat, or more from the engine, is waited for."""
        return self._since_s is not None

    def go_on(self) -> float:
        """What was waited for has come whole, or is not waited for any more; the time."""
        now_s = self._now_s()
        if self._since_s is not None:
            self.waited_s += now_s - self._since_s
            self._since_s = None
        if self._first_s is not None and self._last_s is not None:
            self.gaps_s += self._last_s - self._first_s
        self._first_s = self._last_s = None
        return now_s

    def ask(self) -> None:
        """The engine is asked, first or for the rest: until `go_on` it is waited for, whatever is done beside it."""
        self._since_s = self._now_s()

    def came(self, num_new: int) -> float:
        """The engine's next output has come, with so many tokens; the time."""
        now_s = self._now_s()
        if num_new:
            if self._last_s is None:
                self._first_s = now_s
            else:
                self.gaps[bisect_left(GAP_BOUNDS_S, (now_s - self._last_s) / num_new)] += num_new
            self._last_s = now_s
        return now_s

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second after the first output; None where nothing came after it."""
        return sum(self.gaps) / self.gaps_s if self.gaps_s > 0 else None


@dataclass(slots=True)
class ClientPace:
    """What a request waited for its client. `received_s`: when its body was whole; `unread_s`: while its answer was not taken."""

    received_s: float | None = None
    unread_s: float = 0.0

    def waited_s(self, arrived_s: float) -> float:
        """All of it so far, of a request that arrived then."""
        receiving_s = 0.0 if self.received_s is None else max(0.0, self.received_s - arrived_s)
        return receiving_s + self.unread_s
