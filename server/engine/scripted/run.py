"""Running requests of the scripted engine: how they wait, how they are cut off, and who has a seat.

Invariant: a run never waits on anything that `cut` does not end; no tasks are made.
"""

from __future__ import annotations

import asyncio
import heapq
from enum import StrEnum
from typing import Final

from server.engine.base import EngineRequest
from server.engine.scripted.record import Entry
from server.engine.scripted.timer import Timer

MAX_LATE_S: Final = 1.0


class Cut(StrEnum):
    """Why a run ends before its reply does."""

    ABORT = "abort"
    DEAD = "dead"


class Run:
    """One request in the engine. `seated`: it generates; before that it waits for a seat. `entry`: what is remembered of it.

    Rests are counted from where the last one should have ended, not from when it was noticed: what comes late now and then still
    keeps the script's pace on the whole. What is late by more than `MAX_LATE_S` is not caught up with.
    """

    def __init__(self, request: EngineRequest, entry: Entry, timer: Timer) -> None:
        self.request = request
        self.entry = entry
        self.seated = False
        self.left = False
        self.cut_by: Cut | None = None
        self._timer = timer
        self._due_s: float | None = None
        self._wake: asyncio.Future[None] | None = None

    async def rest(self, seconds: float) -> None:
        """Let `seconds` pass, at least one turn of the event loop; shorter where the run is late or cut off."""
        if self.cut_by is not None:
            return
        now_s = self._timer.now_s()
        begun_s = now_s if self._due_s is None else max(self._due_s, now_s - MAX_LATE_S)
        self._due_s = begun_s + seconds
        if self._due_s <= now_s:
            await asyncio.sleep(0)
            return
        alarm = self._timer.call_later(self._due_s - now_s, self.wake)
        try:
            await self._asleep()
        finally:
            alarm.cancel()

    async def wait_seat(self) -> None:
        """Return when the run is seated or cut off."""
        while not self.seated and self.cut_by is None:
            await self._asleep()

    async def wait_cut(self) -> None:
        """Return when the run is cut off."""
        while self.cut_by is None:
            await self._asleep()

    def cut(self, by: Cut) -> None:
        """End the run before its time; the first reason stands."""
        if self.cut_by is None:
            self.cut_by = by
            self.wake()

    def wake(self) -> None:
        """End the present wait."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _asleep(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None


class Seats:
    """`size` runs generate at once; the others wait, lowest priority value first, then in order of arrival."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._num_arrived = 0
        self._waiting: list[tuple[int, int, Run]] = []
        self.num_seated = 0

    def join(self, run: Run) -> None:
        """Seat `run`, or queue it."""
        self._num_arrived += 1
        heapq.heappush(self._waiting, (run.request.priority, self._num_arrived, run))
        self._fill()

    def leave(self, run: Run) -> None:
        """Free the seat or the place in the queue. May be called twice."""
        if run.left:
            return
        run.left = True
        if run.seated:
            self.num_seated -= 1
            self._fill()

    def _fill(self) -> None:
        while self._waiting and self.num_seated < self._size:
            run = heapq.heappop(self._waiting)[2]
            if not run.left:
                self.num_seated += 1
                run.seated = True
                run.wake()
