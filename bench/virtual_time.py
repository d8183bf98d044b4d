"""An event loop whose time is made up: where everybody sleeps, it moves to when the first one wakes.

What runs on it is exact and takes no longer than its work. What `run_in_executor` is given runs in the loop's own thread, after
`THREAD_S`; nothing else outside the loop may be waited for.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

T = TypeVar("T")
THREAD_S: Final = 0.002


class _Selector(selectors.SelectSelector):
    """Never sleeps: the time it was to sleep for is over."""

    def __init__(self, turn_s: Callable[[], float]) -> None:
        super().__init__()
        self.now_s = 0.0
        self._turn_s = turn_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now_s += self._turn_s()
        if timeout is not None and timeout > 0:
            self.now_s += timeout
            timeout = 0
        return super().select(timeout)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 0 s. `turn_s` says how long each turn takes, beside what is slept: so alarms ring between any two turns."""

    def __init__(self, turn_s: Callable[[], float] = float) -> None:
        self._virtual = _Selector(turn_s)
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s

    def run_in_executor(  # type: ignore[override]  # typeshed's type variables say the same
        self, executor: Executor | None, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - for whoever waits
                done.set_exception(error)

        self.call_later(THREAD_S, work)
        return done


class LoopClock:
    """The running loop's time, as a `server.clock.Clock`."""

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def unix_s(self) -> int:
        return self.unix_ms() // 1000

    def unix_ms(self) -> int:
        return 1_700_000_000_000 + int(self.monotonic_s() * 1000)


def run(main: Coroutine[Any, Any, T], turn_s: Callable[[], float] = float) -> T:
    """As `asyncio.run`, in made-up time."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(turn_s)) as runner:
        return runner.run(main)
