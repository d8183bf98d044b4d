"""Stores behind the admin API: both kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from server.store.database import Database
from tests.routes.admin_gateway import AdminGateway
from tests.store.conftest import postgres_server, store_url

__all__ = ["postgres_server", "store_url"]


@pytest.fixture
async def admin(store_url: str) -> AsyncIterator[AdminGateway]:
    """A gateway with an empty store, of each kind."""
    async for gateway in _over(store_url):
        yield gateway


@pytest.fixture
async def one_admin() -> AsyncIterator[AdminGateway]:
    """A gateway with an empty store in memory, for what no store has a part in."""
    async for gateway in _over("sqlite://"):
        yield gateway


async def _over(url: str) -> AsyncIterator[AdminGateway]:
    database = await Database.open(url)
    gateway = AdminGateway(database)
    yield gateway
    await gateway.close()
    await database.close()
