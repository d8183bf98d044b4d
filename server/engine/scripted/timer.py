"""The scripted engine's sense of time, so that tests own it."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Protocol

from server.clock import ManualClock


class Alarm(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Call it off. May be called twice, and after it rang."""
        ...


class Timer(Protocol):
    """Tells the time, and calls back after some of it."""

    def now_s(self) -> float:
        """Seconds that never go back."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Alarm:
        """Call `callback` on the event loop after `delay_s` seconds."""
        ...


class LoopTimer:
    """The running event loop's time, which uvloop tells in whole milliseconds."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Alarm:
        return asyncio.get_running_loop().call_later(delay_s, callback)


class ManualTimer:
    """Time that moves only when told to. `pending` are the delays asked for and not yet over, in seconds from now."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.now_s = self.clock.monotonic_s
        self._alarms: list[_ManualAlarm] = []
        self._num_made = 0

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Alarm:
        self._num_made += 1
        alarm = _ManualAlarm(self.clock.now_s + delay_s, self._num_made, callback)
        heapq.heappush(self._alarms, alarm)
        return alarm

    @property
    def pending(self) -> list[float]:
        return sorted(alarm.due_s - self.clock.now_s for alarm in self._alarms if not alarm.cancelled)

    def advance(self, seconds: float) -> None:
        """Move on by `seconds` and ring what is due by then, in order. What wakes up runs at the loop's next turn."""
        until_s = self.clock.now_s + seconds
        while self._alarms and self._alarms[0].due_s <= until_s:
            alarm = heapq.heappop(self._alarms)
            self.clock.now_s = max(self.clock.now_s, alarm.due_s)
            if not alarm.cancelled:
                alarm.callback()
        self.clock.now_s = until_s


class _ManualAlarm:
    def __init__(self, due_s: float, number: int, callback: Callable[[], object]) -> None:
        self.due_s = due_s
        self.callback = callback
        self.cancelled = False
        self._number = number

    def cancel(self) -> None:
        self.cancelled = True

    def __lt__(self, other: _ManualAlarm) -> bool:
        return (self.due_s, self._number) < (other.due_s, other._number)
