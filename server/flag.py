"""An event that takes little memory while nobody waits for it, as most do that a connection has.

Role: bottom layer. `asyncio.Event` has room for dozens of waiters from the start.
"""

from __future__ import annotations

import asyncio


class Flag:
    """As `asyncio.Event`."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self, *, is_set: bool = False) -> None:
        self._is_set = is_set
        self._waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Whether `wait` would return at once."""
        return self._is_set

    def set(self) -> None:
        """Wake whoever waits."""
        self._is_set = True
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Let wait who comes from now on."""
        self._is_set = False

    async def wait(self) -> bool:
        """Return True once it is set."""
        if self._is_set:
            return True
        waiter = asyncio.get_running_loop().create_future()
        waiters = self._waiters = self._waiters or []
        waiters.append(waiter)
        try:
            await waiter
        finally:
            waiters.remove(waiter)
            if not waiters:
                self._waiters = None
        return True
