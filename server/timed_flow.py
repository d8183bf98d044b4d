"""How a connection waits for its client to read."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl

from server.clock import Clock
from server.flag import Flag
from server.pace import ClientPace


class TimedFlow(FlowControl):
    """Measures how long a client leaves unread what was written, while somebody waits to write more. `pace`: of the request."""

    def __init__(self, transport: asyncio.Transport, clock: Clock) -> None:
        self._transport = transport
        self.read_paused = self.write_paused = False
        self.pace = ClientPace()
        self._clock = clock
        self._is_writable = Flag(is_set=True)
        self._num_waiting = 0

    def pause_writing(self) -> None:
        self.write_paused = True
        self._is_writable.clear()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._is_writable.set()

    async def drain(self) -> None:
        if self._num_waiting:  # the answer and a comment: the time counts once
            await self._is_writable.wait()
            return
        self._num_waiting = 1
        begun_s = self._clock.monotonic_s()
        try:
            await self._is_writable.wait()
        finally:
            self._num_waiting = 0
            self.pace.unread_s += self._clock.monotonic_s() - begun_s
