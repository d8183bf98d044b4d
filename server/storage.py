"""The store of one gateway: tenants and keys as they are now, and the ledger.

Role: beside the request's path; `tenancy/` and `usage/` do the work. Invariant: a database that is away holds up nothing that has
begun: keys known before stay known, ledger rows wait in the spool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import structlog

from server.clock import Clock
from server.errors import OverloadedError
from server.settings import Settings
from server.store.database import Database
from server.store.errors import StoreAwayError
from server.tenancy.keys import OPEN_TENANT, KeyTable
from server.tenancy.registry import Registry
from server.tenancy.watch import Watch
from server.usage.ledger import Ledger
from server.usage.spool import Spool
from server.usage.table import LedgerTable, Spent

RETRY_INTERVAL_S = 1.0
FLUSH_TIMEOUT_S = 3.0
log = structlog.get_logger(__name__)


class Storage:
    """Opened beside the running server; `opened` is set once the database has been reached.

    `on_first_key` is called with the key that an empty store was given. Raises `StoreError` for a URL that is no store's.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        tenancy = settings.tenancy
        self._settings = settings
        self._clock = clock
        self.keys = KeyTable(OPEN_TENANT if tenancy.auth == "off" else None, clock=clock, awaits_store=tenancy.auth == "keys")
        self.keys.configure(tenancy.key)
        self.database = Database(settings.storage.ledger_url)
        self.registry = Registry(self.database, clock)
        self.watch = Watch(self.registry, self.keys, clock)
        self.ledger = Ledger(Spool(settings.storage.spool_path), LedgerTable(self.database), clock)
        self.opened = asyncio.Event()
        self.cache_secret = b""
        self.on_first_key: Callable[[str], None] = lambda secret: None

    def check_open(self) -> None:
        """Raise an `OverloadedError` until the store has been reached once."""
        if not self.opened.is_set():
            raise OverloadedError("the store of keys can't be reached yet; try again in a moment")

    async def open(self) -> Mapping[str, Spent]:
        """Reach the database, however long it takes; returns what each tenant has spent of this day and month.

        Raises `StoreError` for a store that can't be this gateway's.
        """
        is_known_away = False
        while True:
            try:
                return await self._open()
            except StoreAwayError as error:
                if not is_known_away:
                    log.error("store_away", error=str(error))
                is_known_away = True
                await asyncio.sleep(RETRY_INTERVAL_S)

    async def _open(self) -> Mapping[str, Spent]:
        tenancy = self._settings.tenancy
        if self._settings.tenants:
            await self.registry.apply_tenants(self._settings.tenants)
        if tenancy.auth == "keys" and tenancy.key is None:
            secret = await self.registry.ensure_first_tenant()
            if secret is not None:
                self.on_first_key(secret)
        configured = tenancy.cache_secret
        self.cache_secret = configured.get_secret_value().encode() if configured else await self.registry.cache_secret()
        await self.watch.refresh()
        await self.ledger.adopt()
        await self.ledger.drain()
        return await self.spent()

    async def spent(self) -> Mapping[str, Spent]:
        """What the ledger says each tenant has spent of this day and month."""
        return await self.ledger.spent_since(*_window_starts_ms(self._clock.unix_s()))

    async def run(self, seed: Callable[[Mapping[str, Spent]], None]) -> None:
        """Open the store, then follow its changes and write the ledger, until cancelled. `seed` takes what has been spent."""
        try:
            seed(await self.open())
            self.opened.set()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.ledger.run())
                tasks.create_task(self.watch.run())
        finally:
            await self._close()

    async def _close(self) -> None:
        """Write what can be written now, and let go of the database."""
        if self.opened.is_set():
            await self.ledger.flush(FLUSH_TIMEOUT_S)
        self.ledger.close()
        await self.database.close()


def _window_starts_ms(now_s: int) -> tuple[int, int]:
    """The beginnings of this day and month, in milliseconds since 1970."""
    day = datetime.fromtimestamp(now_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return round(day.timestamp() * 1000), round(day.replace(day=1).timestamp() * 1000)
