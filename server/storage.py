"""The store of one gateway: tenants and keys as they are now, and the ledger.

Role: beside the request's path; `tenancy/` and `usage/` do the work. Invariant: a database that is away holds up nothing that has
begun: keys known before stay known, ledger rows wait in the spool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from server.clock import Clock
from server.errors import OverloadedError
from server.settings import Settings
from server.store.database import Database, StoreAwayError
from server.tenancy.keys import OPEN_TENANT, KeyTable
from server.tenancy.registry import Registry
from server.tenancy.watch import Watch
from server.usage.ledger import Ledger
from server.usage.spool import Spool

OPEN_RETRY_INTERVAL_S = 1.0
log = structlog.get_logger(__name__)

Spent = dict[str, tuple[int, int, int, int]]
"""Tenant -> tokens and nano-dollars of the day, and of the month."""


class Storage:
    """Opened beside the running server. `database`, `registry` and `watch` are None until the database has been reached once.

    `on_first_key` is called with the key that an empty store was given.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        tenancy = settings.tenancy
        key = tenancy.key.get_secret_value() if tenancy.key is not None else None
        self.keys = KeyTable(clock, open_tenant=OPEN_TENANT if tenancy.auth == "off" else None, extra_key=key)
        self.ledger = Ledger(Spool(settings.storage.spool_path), clock)
        self.database: Database | None = None
        self.registry: Registry | None = None
        self.watch: Watch | None = None
        self.opened = asyncio.Event()
        self.cache_secret = b""
        self.on_first_key: Callable[[str], None] = lambda secret: None

    def check_open(self) -> None:
        """Raise an `OverloadedError` until the store has been reached once."""
        if not self.opened.is_set():
            raise OverloadedError("the store of keys can't be reached yet; try again in a moment")

    async def open(self) -> Spent:
        """Reach the database, however long it takes; returns what each tenant has spent of this day and month."""
        is_known_away = False
        while True:
            try:
                return await self._open()
            except StoreAwayError as error:
                if not is_known_away:
                    log.error("store_away", error=str(error))
                is_known_away = True
                await asyncio.sleep(OPEN_RETRY_INTERVAL_S)

    async def _open(self) -> Spent:
        settings = self._settings
        if self.database is None:
            self.database = await Database.open(settings.storage.ledger_url)
        registry = Registry(self.database, self._clock)
        if settings.tenants:
            await registry.apply_tenants(settings.tenants)
        if settings.tenancy.auth == "keys" and settings.tenancy.key is None:
            secret = await registry.ensure_first_tenant()
            if secret is not None:
                self.on_first_key(secret)
        configured = settings.tenancy.cache_secret
        self.cache_secret = configured.get_secret_value().encode() if configured else await registry.cache_secret()
        watch = Watch(registry, self.keys)
        await watch.refresh()
        self.ledger.set_database(self.database)
        spent = await self.ledger.spent_since(*_window_starts_ms(self._clock.unix_s()))
        self.registry, self.watch = registry, watch
        return spent

    async def run(self, seed: Callable[[Spent], None]) -> None:
        """Open the store, then follow its changes and write the ledger, until cancelled. `seed` takes what has been spent."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.ledger.run())
                seed(await self.open())
                self.opened.set()
                assert self.watch is not None
                await self.watch.run()
        finally:
            await self.close()

    async def close(self) -> None:
        """Write what can be written now, and let go of the database."""
        if self.database is not None:
            await self.database.close()


def _window_starts_ms(now_s: int) -> tuple[int, int]:
    """The beginnings of this day and month, in milliseconds since 1970."""
    day = datetime.fromtimestamp(now_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return round(day.timestamp() * 1000), round(day.replace(day=1).timestamp() * 1000)
