"""Time limits that a stalled event loop does not use up.

A loop that was busy for longer than a limit finds the answer and the end of the limit at once, and would take the one who
answered in time for late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

STALL_S: Final = 0.005
"""A loop that is so late was busy itself."""


class Patience:
    """Calls `expire` after `limit_s`; where the loop was late for that, it begins anew, once."""

    __slots__ = ("_due_s", "_expire", "_limit_s", "_loop", "_may_delay", "_timer")

    def __init__(self, limit_s: float, expire: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit_s = limit_s
        self._expire = expire
        self._may_delay = True
        self._start()

    def end(self) -> None:
        """What was waited for has come."""
        self._timer.cancel()

    def _start(self) -> None:
        self._due_s = self._loop.time() + self._limit_s
        self._timer = self._loop.call_later(self._limit_s, self._ring)

    def _ring(self) -> None:
        if self._may_delay and self._loop.time() - self._due_s > STALL_S:
            self._may_delay = False
            self._start()
        else:
            self._expire()
