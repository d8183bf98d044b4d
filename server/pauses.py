"""Work in a thread beside the event loop, which both run in one interpreter: pauses in which the loop can have it.

Role: bottom layer, for threads that run Python code for many milliseconds. Whoever wants the interpreter from a thread that does
not let go has to wait five milliseconds for it, every time; a loop that serves streams wants it hundreds of times a second.
Must not: be used on the event loop.
"""

from __future__ import annotations

import threading
import time
from typing import Final

_WORK_S: Final = 0.002
_PAUSE_S: Final = 0.00005


def go_on() -> None:
    """In the place of a `Pauses` where there is nobody to make room for."""


class Pauses:
    """Called often, in one thread: lets the others run for a moment every two milliseconds."""

    __slots__ = ("_last_s", "_never")

    def __init__(self) -> None:
        self._last_s = time.perf_counter()
        self._never = threading.Event()

    def __call__(self) -> None:
        if time.perf_counter() - self._last_s > _WORK_S:
            self._never.wait(_PAUSE_S)
            self._last_s = time.perf_counter()
