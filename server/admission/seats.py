"""What a queue knows of the seats and the waiting of others, where several processes give out the seats of one engine.

Role: beside `fair_queue.py`, which looks at each decision and tells what came of it. Invariant: nothing here waits; what others
have told is at hand. So two may take the last seat at once: then one of their requests waits in the engine.
"""

from __future__ import annotations

from typing import Protocol


class SeatsElsewhere(Protocol):
    """All processes but this one. `server.workers.board.Board` is that."""

    @property
    def num_seated(self) -> int:
        """Seats that requests of theirs have."""
        ...

    def come_first(self, counter: int) -> bool:
        """Whether somebody waits there who comes before one with this counter, and can be trusted to take a free seat now."""
        ...

    def tell(self, num_seated: int, num_waiting: int, least: int | None) -> None:
        """How it is here: seats taken, requests that wait, and the least counter of those; None where nobody does."""
        ...

    @property
    def kv_cache_usage(self) -> float:
        """Of the engine, 0..1, as the process says that heard of it last, this one among them."""
        ...

    @property
    def num_preemptions(self) -> int:
        """Of the engine, as all processes have counted them, this one among them."""
        ...
