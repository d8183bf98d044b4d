"""Rows, stores that fail when told to, and gateways that die."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from server import logs
from server.sections import LogSettings
from server.store.database import Database
from server.store.errors import StoreAwayError
from server.usage.ledger import RowStore
from server.usage.row import LedgerRow
from server.usage.spool import Spool
from server.usage.table import Spent
from tests.services.postgres import Postgres, postgres_server
from tests.store.conftest import own_postgres, store_url

__all__ = ["Postgres", "own_postgres", "postgres_server", "store_url"]


class Killed(BaseException):
    """The process ends here: nothing of it runs any more."""


class MemoryStore:
    """A table in memory, with the ledger's one rule: an id is kept once."""

    def __init__(self) -> None:
        self.rows: dict[str, LedgerRow] = {}

    async def insert(self, rows: Sequence[LedgerRow]) -> list[LedgerRow]:
        for row in rows:
            self.rows.setdefault(row.id, row)
        return []

    async def spent_since(self, day_start_ms: int, month_start_ms: int) -> dict[str, Spent]:
        raise NotImplementedError


class FaultyStore:
    """Does to the next batches what `faults` say, in their order; serves the rest truly."""

    def __init__(self, inner: RowStore) -> None:
        self.inner = inner
        self.faults: list[str] = []
        self.num_inserts = 0

    async def insert(self, rows: Sequence[LedgerRow]) -> list[LedgerRow]:
        self.num_inserts += 1
        fault = self.faults.pop(0) if self.faults else "none"
        if fault == "away":
            raise StoreAwayError("away")
        if fault == "killed before":
            raise Killed
        if fault == "half":
            await self.inner.insert(rows[: len(rows) // 2])
            raise StoreAwayError("gone in the middle")
        refused = await self.inner.insert(rows)
        if fault == "unheard":
            raise StoreAwayError("the connection broke after the commit")
        if fault == "killed after":
            raise Killed
        return refused

    async def spent_since(self, day_start_ms: int, month_start_ms: int) -> dict[str, Spent]:
        return await self.inner.spent_since(day_start_ms, month_start_ms)


def kill(spool: Spool) -> None:
    """What the operating system does of a killed process: its files are closed, and no more."""
    for segment in spool._segments:
        os.close(segment.fd)
    spool._segments.clear()
    spool._active = None


def a_row(number: int, **values: object) -> LedgerRow:
    """The row number `number`; no two differ by their ids alone."""
    base = {
        "id": f"id-{number}",
        "request_id": f"req-{number} “quoted”\n",
        "tenant": f"tenant-{number % 3}",
        "model": "kimi-k3",
        "arrived_unix_ms": 1_700_000_000_000 + number,
        "ended_unix_ms": 1_700_000_001_000 + number,
        "input_tokens": number,
        "outcome": "finished",
    }
    return LedgerRow(**{**base, **values})  # type: ignore[arg-type]


async def rows_in(database: Database) -> list[LedgerRow]:
    """All rows of the table, by id; more than one of an id can't be."""
    from server.store.tables import ledger

    async with database.read() as connection:
        found = (await connection.execute(ledger.select())).mappings().all()
    return sorted((LedgerRow(**row) for row in found), key=lambda row: row.id)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'gateway.db'}"


@pytest.fixture
def loud() -> Iterator[None]:
    """Lines below `error` are tested for, too."""
    logs.configure(LogSettings(level="info"))
    yield
    logs.configure(LogSettings(level="error"))
