"""Work in a thread beside the event loop, which both run in one interpreter: pauses in which the loop has it.

Role: bottom layer, for threads that run Python code for many milliseconds. Whoever wants the interpreter from a thread that does
not let go has to wait five milliseconds for it, every time; a loop that serves streams wants it hundreds of times a second. To
let go for a moment is not enough: the loop may not be awake yet when the moment is over. So a pause lasts until it has turned.
Must not: be used on the event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Final

_WORK_S: Final = 0.002
_LONGEST_S: Final = 0.1
"""Of a pause: a loop that does not turn at all has ended, or has other troubles."""


def go_on() -> None:
    """In the place of a `Pauses` where there is nobody to make room for."""


class Pauses:
    """Called often, in one thread: every two milliseconds, waits for a turn of `loop`."""

    __slots__ = ("_has_turned", "_last_s", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._has_turned = threading.Event()
        self._last_s = time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._last_s < _WORK_S:
            return
        self._has_turned.clear()
        try:
            self._loop.call_soon_threadsafe(self._has_turned.set)
        except RuntimeError:  # it is closed, so nobody waits for it
            return
        self._has_turned.wait(_LONGEST_S)
        self._last_s = time.perf_counter()
