"""How busy the event loop is: how late a timer rings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from server.clock import Clock

LOOK_INTERVAL_S: Final = 0.25


class LoopLag:
    """Tells `on_lag`, a few times a second, by how many seconds a sleep was too long. `run` goes on until cancelled."""

    def __init__(
        self, clock: Clock, on_lag: Callable[[float], None], *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._clock = clock
        self._on_lag = on_lag
        self._sleep = sleep

    async def run(self) -> None:
        """Look again and again."""
        while True:
            due_s = self._clock.monotonic_s() + LOOK_INTERVAL_S
            await self._sleep(LOOK_INTERVAL_S)
            self._on_lag(max(0.0, self._clock.monotonic_s() - due_s))
