"""What was fetched lately, for those who ask for the same URL and share a cache.

Role: between `fetch.py` and the network, where the operator wants it. Files are found by (scope, URL) alone, so no cache group
gets another's. Requests for the same at once wait for one of them.
Must not: close a file that it forgets; who was given it may still read it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from server.clock import Clock
from server.payload import PayloadFile

MAX_FILES: Final = 512
"""Each has a descriptor, however small it is."""

Key = tuple[bytes, str]


@dataclass(slots=True, frozen=True)
class Fetched:
    """An image's file, and the `hosts` that it came by: the URL's own first. `may_be_kept`: the last of them allows it."""

    file: PayloadFile
    hosts: tuple[str, ...]
    may_be_kept: bool = True


@dataclass(slots=True, frozen=True)
class _Entry:
    fetched: Fetched
    expires_s: float


class UrlCache:
    """Up to `max_bytes` of files, `MAX_FILES` at most, each for `ttl_s` seconds; those not asked for the longest go first."""

    def __init__(self, max_bytes: int, ttl_s: float, clock: Clock) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._flights: dict[Key, asyncio.Future[Fetched | None]] = {}

    async def get(self, key: Key, load: Callable[[], Awaitable[Fetched]]) -> tuple[Fetched, bool]:
        """The file of `key`, and whether this call has loaded it. Failures are not shared: callers have bounds of their own."""
        while True:
            if (kept := self._find(key)) is not None:
                return kept, False
            flight = self._flights.get(key)
            if flight is None:
                return await self._load(key, load), True
            await asyncio.wait([flight])  # not `await flight`: a caller that is cancelled must not cancel it for the others
            if (fetched := flight.result()) is not None:
                return fetched, False

    def clear(self) -> None:
        """Forget all files."""
        self._entries.clear()
        self.num_bytes = 0

    async def _load(self, key: Key, load: Callable[[], Awaitable[Fetched]]) -> Fetched:
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        fetched = None
        try:
            fetched = await load()
            self._keep(key, fetched)
            return fetched
        finally:
            del self._flights[key]
            flight.set_result(fetched)

    def _find(self, key: Key) -> Fetched | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires_s <= self._clock.monotonic_s():
            self._forget(key)
            return None
        self._entries.move_to_end(key)
        return entry.fetched

    def _keep(self, key: Key, fetched: Fetched) -> None:
        if not fetched.may_be_kept or fetched.file.num_bytes > self._max_bytes:
            return
        self._entries[key] = _Entry(fetched, self._clock.monotonic_s() + self._ttl_s)
        self.num_bytes += fetched.file.num_bytes
        while self.num_bytes > self._max_bytes or len(self._entries) > MAX_FILES:
            self._forget(next(iter(self._entries)))

    def _forget(self, key: Key) -> None:
        self.num_bytes -= self._entries.pop(key).fetched.file.num_bytes
