"""What the workers of one engine know of each other's seats: a few numbers each, in memory that all of them see.

Role: between the fair queues of the workers, which give out the seats of one engine together. Who waits with the least counter,
wherever that is, has the next free seat. Invariant: each worker writes its own numbers only, one aligned number at a time, so no
lock is needed; a reader may see one that is a moment old.
Must not: keep a seat free for a worker that does not take it within `PATIENCE_S`: it may be held up.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import MutableSequence
from typing import Final

from server.clock import Clock
from server.engine.base import EngineStats

PATIENCE_S: Final = 0.02
TELL_S: Final = 0.05
SEATED, WAITING, LEAST, SEATINGS, STEP_S, KV_USAGE, PREEMPTIONS = range(7)
NUM_NUMBERS: Final = 7
"""Of each worker: seats taken, requests that wait, the least counter of those, how many seats it ever gave; then when it last
heard of the engine, and what: share of the KV cache; and the preemptions of its own requests."""


class Board:
    """As worker `index` sees it. `numbers`, shape (workers * NUM_NUMBERS,), floating-point, zeros at first: shared by all."""

    def __init__(self, numbers: MutableSequence[float], index: int, clock: Clock) -> None:
        self._numbers = numbers
        self._own = index * NUM_NUMBERS
        self._others = [start for start in range(0, len(numbers), NUM_NUMBERS) if start != self._own]
        self._clock = clock
        self._yields_since_s = math.inf
        self._seatings_seen = 0.0

    @property
    def num_seated(self) -> int:
        """As in `SeatsElsewhere`."""
        return int(sum(self._numbers[start + SEATED] for start in self._others))

    def come_first(self, counter: int) -> bool:
        """As in `SeatsElsewhere`. Of equal counters, that of the worker with the lower number comes first."""
        numbers, mine = self._numbers, (float(counter), self._own)
        if not any(numbers[start + WAITING] and (numbers[start + LEAST], start) < mine for start in self._others):
            self._yields_since_s = math.inf
            return False
        now_s = self._clock.monotonic_s()
        seatings = sum(numbers[start + SEATINGS] for start in self._others)
        if math.isinf(self._yields_since_s) or seatings != self._seatings_seen:
            self._yields_since_s, self._seatings_seen = now_s, seatings
        return now_s - self._yields_since_s < PATIENCE_S

    def tell(self, num_seated: int, num_waiting: int, least: int | None) -> None:
        """As in `SeatsElsewhere`."""
        numbers, own = self._numbers, self._own
        numbers[own + SEATINGS] += max(0.0, num_seated - numbers[own + SEATED])
        numbers[own + SEATED] = num_seated
        numbers[own + LEAST] = math.inf if least is None else least
        numbers[own + WAITING] = num_waiting

    @property
    def kv_cache_usage(self) -> float:
        """As in `SeatsElsewhere`."""
        starts = (self._own, *self._others)
        newest = max(starts, key=lambda start: self._numbers[start + STEP_S])
        return self._numbers[newest + KV_USAGE]

    @property
    def num_preemptions(self) -> int:
        """As in `SeatsElsewhere`."""
        return int(sum(self._numbers[start + PREEMPTIONS] for start in (self._own, *self._others)))

    def hear(self, stats: EngineStats) -> None:
        """Let all know what the engine has told this worker."""
        numbers, own = self._numbers, self._own
        numbers[own + PREEMPTIONS] = stats.num_preemptions
        if stats.steps:
            steps = stats.steps.values()
            numbers[own + KV_USAGE] = sum(step.kv_cache_usage for step in steps) / len(steps)
            numbers[own + STEP_S] = max(step.at_s for step in steps)

    async def run(self, stats: EngineStats) -> None:
        """Do so again and again, until cancelled."""
        while True:
            self.hear(stats)
            await asyncio.sleep(TELL_S)
