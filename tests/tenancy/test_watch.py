"""What a running gateway sees of the store's changes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import text
from structlog.testing import LogCapture

from server.clock import ManualClock
from server.errors import OverloadedError
from server.sections import TenantSettings
from server.store.database import Database
from server.store.errors import StoreAwayError
from server.tenancy import watch as watch_module
from server.tenancy.keys import KeyTable, new_key
from server.tenancy.registry import Registry
from server.tenancy.snapshot import Snapshot
from server.tenancy.watch import Watch
from tests.services.postgres import Postgres
from tests.store.conftest import own_postgres

__all__ = ["own_postgres"]


class Looks:
    """Lets a watch look again when the test says so, and the test wait until it has looked."""

    def __init__(self) -> None:
        self._go = asyncio.Semaphore(0)
        self._looked = asyncio.Semaphore(0)
        self.intervals: list[float] = []

    async def wait(self, seconds: float) -> None:
        self.intervals.append(seconds)
        self._looked.release()
        await self._go.acquire()

    async def first(self) -> None:
        await asyncio.wait_for(self._looked.acquire(), 20)

    async def another(self) -> None:
        self._go.release()
        await self.first()


class CountingTable(KeyTable):
    """Notes the versions of what it is given."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock, awaits_store=True)
        self.versions: list[int] = []

    def load(self, snapshot: Snapshot) -> None:
        self.versions.append(snapshot.version)
        super().load(snapshot)


async def test_a_change_counts_at_the_next_look_and_is_loaded_once(registry: Registry, clock: ManualClock) -> None:
    keys, looks = CountingTable(clock), Looks()
    running = asyncio.ensure_future(Watch(registry, keys, clock, wait=looks.wait).run())
    await looks.first()
    await registry.apply_tenants({"acme": TenantSettings()})
    info, secret = await registry.create_key("acme")
    assert keys.find(secret.encode()) is None
    await looks.another()
    found = keys.find(secret.encode())
    await looks.another()
    await looks.another()
    await registry.apply_tenants({"acme": TenantSettings(weight=7)})
    await looks.another()
    reweighted = keys.find(secret.encode())
    await registry.revoke_key(info.id)
    await looks.another()

    assert (TenantSettings().tenant("acme"), info.id) == found
    assert (TenantSettings(weight=7).tenant("acme"), info.id) == reweighted
    assert keys.find(secret.encode()) is None
    assert [0, 2, 3, 4] == keys.versions
    assert {0.5} == set(looks.intervals)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_refresh_counts_at_once(registry: Registry, clock: ManualClock) -> None:
    keys = KeyTable(clock=clock, awaits_store=True)
    watch = Watch(registry, keys, clock)
    secret = await registry.ensure_first_tenant()
    assert secret is not None
    await asyncio.gather(*(watch.refresh() for _ in range(5)))

    assert keys.find(secret.encode()) is not None


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the watch logs, of every level."""
    capture = LogCapture()
    wrapper = structlog.make_filtering_bound_logger(logging.DEBUG)
    monkeypatch.setattr(watch_module, "log", structlog.wrap_logger(None, processors=[capture], wrapper_class=wrapper))
    return capture.entries


async def test_while_the_store_is_away_the_last_snapshot_stays_and_it_is_said_once(
    own_postgres: Postgres, logged: list[Any]
) -> None:
    clock = ManualClock()
    database = await Database.open(own_postgres.new_database())
    registry = Registry(database, clock)
    secret = await registry.ensure_first_tenant()
    assert secret is not None
    keys, looks = KeyTable(clock=clock, awaits_store=True), Looks()
    watch = Watch(registry, keys, clock, wait=looks.wait)
    running = asyncio.ensure_future(watch.run())
    await looks.first()
    assert [] == logged

    own_postgres.stop()
    for _ in range(3):
        await looks.another()
        assert keys.find(secret.encode()) is not None
        assert watch.is_away
    with pytest.raises(StoreAwayError):
        await watch.refresh()
    clock.advance(90)
    own_postgres.start()
    other = await registry.create_key("default")
    for _ in range(3):
        await looks.another()
    assert keys.find(other[1].encode()) is not None
    assert not watch.is_away
    assert [("store_away", None), ("store_back", 90.0)] == [(line["event"], line.get("away_seconds")) for line in logged]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await database.close()


async def test_a_store_that_was_never_there_is_used_when_it_comes(own_postgres: Postgres, logged: list[Any]) -> None:
    clock = ManualClock()
    url = own_postgres.new_database()
    own_postgres.stop()
    database = Database(url)
    keys, looks = KeyTable(clock=clock, awaits_store=True), Looks()
    running = asyncio.ensure_future(Watch(Registry(database, clock), keys, clock, wait=looks.wait).run())
    await looks.first()
    with pytest.raises(OverloadedError):
        keys.find(new_key().encode())
    own_postgres.start()
    await looks.another()
    assert keys.find(new_key().encode()) is None
    assert ["store_away", "store_back"] == [line["event"] for line in logged]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await database.close()


async def test_a_store_whose_tables_are_gone_ends_nothing(tmp_path: Path, logged: list[Any]) -> None:
    clock = ManualClock()
    database = await Database.open(f"sqlite:///{tmp_path}/gateway.db")
    keys, looks = KeyTable(clock=clock, awaits_store=True), Looks()
    running = asyncio.ensure_future(Watch(Registry(database, clock), keys, clock, wait=looks.wait).run())
    await looks.first()
    async with database.write() as connection:
        await connection.execute(text('DROP TABLE "values"'))
    await looks.another()
    assert not running.done()
    assert ["store_away"] == [line["event"] for line in logged]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await database.close()
