"""How long an event loop was kept from turning.

A timer on the loop itself looks at the clock every `TICK_S`: what came between two looks beyond that is the longest that anything
else had to wait. No other thread has a part in it, whose own delays would count, or which a step that holds the interpreter could
keep from seeing that step. Beside the wall clock's figure is the loop's `own`: without the time in which its thread could have
run and the machine gave its CPUs to others (the scheduler's own account of it, where Linux keeps one).
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

TICK_S: Final = 0.002


class LoopProbe:
    """Watches the loop on which `run` runs."""

    def __init__(self) -> None:
        self._wall_s: list[float] = []
        self._own_s: list[float] = []

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        delay_s = _run_delay_of_this_thread()
        last_s, last_delay_s = time.monotonic(), delay_s()

        def look() -> None:
            nonlocal last_s, last_delay_s
            now_s, now_delay_s = time.monotonic(), delay_s()
            blocked_s = max(0.0, now_s - last_s - TICK_S)
            self._wall_s.append(blocked_s)
            self._own_s.append(max(0.0, blocked_s - (now_delay_s - last_delay_s)))
            last_s, last_delay_s = now_s, now_delay_s
            loop.call_later(TICK_S, look)

        loop.call_soon(look)
        await loop.create_future()

    def take(self) -> dict[str, float]:
        """Of the time since the last call, in milliseconds."""
        wall_s, self._wall_s = sorted(self._wall_s) or [0.0], []
        own_s, self._own_s = sorted(self._own_s) or [0.0], []
        return {
            "block_ms": 1000 * own_s[-1],
            "block_p99_ms": 1000 * own_s[len(own_s) * 99 // 100],
            "block_wall_ms": 1000 * wall_s[-1],
        }


def answer_questions(probe: LoopProbe) -> None:
    """From a thread: for each line of standard input, collect garbage and print what `probe` has as a line of JSON."""

    def answer() -> None:
        for line in sys.stdin:
            if line.strip() == "collect":
                gc.collect()
            print(json.dumps(probe.take()), flush=True)

    threading.Thread(target=answer, daemon=True).start()


def _run_delay_of_this_thread() -> Callable[[], float]:
    """Seconds in which this thread waited for a CPU; 0 where the system does not tell."""
    with suppress(OSError):
        file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        return lambda: int(os.pread(file, 100, 0).split()[1]) / 1e9
    return lambda: 0.0
