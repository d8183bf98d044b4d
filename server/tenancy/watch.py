"""Looks after the key table: what has changed in the store counts here within a second.

Role: background work of the lifespan. Invariant: a store that is away takes nothing from anybody: the last snapshot stays. A
change is for requests that come after it; what is under way keeps the tenant it came with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from sqlalchemy.exc import SQLAlchemyError

from server.clock import Clock
from server.store.errors import StoreError
from server.tenancy.keys import KeyTable
from server.tenancy.registry import Registry

INTERVAL_S: Final = 0.5
ANSWER_S: Final = 10.0
log = structlog.get_logger(__name__)


class Watch:
    """Loads the registry's snapshots into `keys`. `wait`: lets the time between two looks pass, given in seconds."""

    def __init__(
        self,
        registry: Registry,
        keys: KeyTable,
        clock: Clock,
        *,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._registry = registry
        self._keys = keys
        self._clock = clock
        self._wait = wait
        self._loading = asyncio.Lock()
        self._away_since_s: float | None = None

    @property
    def is_away(self) -> bool:
        """Whether the store could not be used when it was last looked at."""
        return self._away_since_s is not None

    async def run(self) -> None:
        """Look twice a second, until cancelled."""
        while True:
            await self._look()
            await self._wait(INTERVAL_S)

    async def refresh(self) -> None:
        """Look now; what was changed before the call counts after it. Raises `StoreError` where the store can't be used."""
        async with self._loading:
            if await self._registry.version() != self._keys.version:
                self._keys.load(await self._registry.snapshot())

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.refresh()
        except (StoreError, SQLAlchemyError, TimeoutError) as error:
            if self._away_since_s is None:
                self._away_since_s = self._clock.monotonic_s()
                reason = str(error) if isinstance(error, StoreError) else type(error).__name__
                log.error("store_away", reason=reason, effect="tenants and keys stay as they were last seen")
        else:
            if self._away_since_s is not None:
                away_s = round(self._clock.monotonic_s() - self._away_since_s, 1)
                log.warning("store_back", away_seconds=away_s)
                self._away_since_s = None
