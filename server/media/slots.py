"""How many images are fetched at once for each tenant; one tenant's wait is no other's.

Role: asked by `fetch.py` before anything goes to the network.
"""

from __future__ import annotations

import asyncio
from typing import Final

from server.errors import RateLimitError

MAX_WAITING: Final = 256
"""Of each tenant."""


class Slot:
    """The right to fetch one image. Free again when all who hold it have let go; who took it is the first of them."""

    def __init__(self, line: _Line) -> None:
        self._line = line
        self._num_holders = 1

    def hold(self) -> None:
        """Keep it a while longer than who took it may."""
        self._num_holders += 1

    def let_go(self) -> None:
        """To be called once for taking it, and once for each `hold`."""
        self._num_holders -= 1
        if self._num_holders == 0:
            self._line.free.release()
            self._line.leave()


class Slots:
    """`most` for each tenant, by name."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: dict[str, _Line] = {}

    def __len__(self) -> int:
        """Tenants that have some, or wait."""
        return len(self._lines)

    async def take(self, name: str) -> Slot:
        """Wait for one of the slots of this tenant. Raises `RateLimitError` where too many wait already."""
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line(self, name, self._most)
        if line.num_users >= self._most + MAX_WAITING:
            raise RateLimitError(
                f"`{line.num_users - self._most}` images of this tenant wait to be fetched already; send fewer, or try later",
                reason="image_queue_full",
                retry_after_s=5,
            )
        line.num_users += 1
        try:
            await line.free.acquire()
        except BaseException:
            line.leave()
            raise
        return Slot(line)

    def close(self, name: str) -> None:
        """Nobody of this tenant is here any more."""
        del self._lines[name]


class _Line:
    def __init__(self, slots: Slots, name: str, most: int) -> None:
        self.free = asyncio.Semaphore(most)
        self.num_users = 0
        self._slots = slots
        self._name = name

    def leave(self) -> None:
        self.num_users -= 1
        if self.num_users == 0:
            self._slots.close(self._name)
