"""How long a place may wait: one timer for all of them.

Invariant: all wait for the same time, so the order of arrival is the order in which they end; nothing is sorted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from server.admission.place import Place
from server.clock import Clock


class Alarm(Protocol):
    """A call that is due later."""

    def cancel(self) -> object:
        """Call it off. May be called twice, and after it rang."""
        ...


CallLater = Callable[[float, Callable[[], object]], Alarm]
"""Calls back on the event loop after some seconds; event loops have such a method."""


def on_loop(delay_s: float, callback: Callable[[], object]) -> Alarm:
    """The running event loop's `call_later`."""
    return asyncio.get_running_loop().call_later(delay_s, callback)


class Deadlines:
    """Places that wait. `expire` is called for each that has waited `timeout_s`, and must `discard` it."""

    def __init__(self, timeout_s: float, clock: Clock, call_later: CallLater, expire: Callable[[Place], None]) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._call_later = call_later
        self._expire = expire
        self._due_s: OrderedDict[Place, float] = OrderedDict()
        self._alarm: Alarm | None = None

    def __len__(self) -> int:
        return len(self._due_s)

    def add(self, place: Place) -> None:
        """It waits from now on."""
        self._due_s[place] = self._clock.monotonic_s() + self._timeout_s
        if self._alarm is None:
            self._alarm = self._call_later(self._timeout_s, self._ring)

    def discard(self, place: Place) -> None:
        """It waits no more."""
        del self._due_s[place]
        if not self._due_s and self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _ring(self) -> None:
        self._alarm = None
        now_s = self._clock.monotonic_s()
        while self._due_s:
            place, due_s = next(iter(self._due_s.items()))
            if due_s > now_s:
                break
            self._expire(place)
        if self._due_s and self._alarm is None:
            self._alarm = self._call_later(max(0.001, due_s - now_s), self._ring)
