"""An event loop whose time is made up: where everybody sleeps, it moves to when the first one wakes.

What runs on it is exact and takes no longer than its work. Threads of `run_in_executor` take no time at all; nothing else outside
the loop may be waited for.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Never sleeps: the time it was to sleep for is over. While `num_threads` work, time stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.num_threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.num_threads and (timeout is None or timeout > 0):
            timeout = None
        elif timeout is not None and timeout > 0:
            self.now_s += timeout
            timeout = 0
        return super().select(timeout)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 0 s."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s

    def run_in_executor(  # type: ignore[override]  # typeshed's type variables say the same
        self, executor: Executor | None, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        done = super().run_in_executor(executor, func, *args)
        self._virtual.num_threads += 1
        done.add_done_callback(self._thread_ended)
        return done

    def _thread_ended(self, done: asyncio.Future[Any]) -> None:
        self._virtual.num_threads -= 1


class LoopClock:
    """The running loop's time, as a `server.clock.Clock`."""

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def unix_s(self) -> int:
        return self.unix_ms() // 1000

    def unix_ms(self) -> int:
        return 1_700_000_000_000 + int(self.monotonic_s() * 1000)


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, in made-up time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
