"""Registries to test with, over stores of both kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from server.clock import ManualClock
from server.store.database import Database
from server.tenancy.registry import Registry
from tests.store.conftest import postgres_server, store_url

__all__ = ["postgres_server", "store_url"]


@pytest.fixture
def clock() -> ManualClock:
    """Time that the test moves."""
    return ManualClock()


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    """An empty store of each kind."""
    database = await Database.open(store_url)
    yield database
    await database.close()


@pytest.fixture
def registry(database: Database, clock: ManualClock) -> Registry:
    """Over an empty store of each kind."""
    return Registry(database, clock)
