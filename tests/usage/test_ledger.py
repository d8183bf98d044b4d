"""The ledger over real databases that are locked, stopped and slow, and over processes that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from server.clock import ManualClock, SystemClock
from server.record import GenerationRecord
from server.store import database as database_module
from server.store.database import Database
from server.usage import ledger as ledger_module
from server.usage.ledger import Ledger
from server.usage.row import LedgerRow
from server.usage.spool import Spool
from server.usage.table import LedgerTable, Spent
from tests.services.postgres import Postgres
from tests.usage.conftest import FaultyStore, MemoryStore, a_row, kill, rows_in

pytestmark = pytest.mark.usefixtures("loud")

PROCESS = Path(__file__).with_name("gateway_process.py")


@asynccontextmanager
async def running(ledger: Ledger) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(ledger.run())
        yield
        task.cancel()


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


def kept_back(ledger: Ledger) -> Callable[[], bool]:
    return lambda: ledger.num_pending == 0


async def longest_turn_s(seconds: float) -> float:
    """How long the loop has kept somebody waiting at most."""
    longest = 0.0
    end_s = time.monotonic() + seconds
    while (started_s := time.monotonic()) < end_s:
        await asyncio.sleep(0.001)
        longest = max(longest, time.monotonic() - started_s)
    return longest


async def test_rows_reach_either_database_as_they_were(store_url: str, spool: Spool) -> None:
    database = await Database.open(store_url)
    ledger = Ledger(spool, LedgerTable(database), ManualClock())
    rows = [a_row(number, key_id="key-1" if number % 2 else None, cost_nano_usd=2**60 + number) for number in range(1203)]
    for row in rows:
        ledger.append(row)
    assert await ledger.drain()
    for row in rows[:700]:  # again, as after a crash between the commit and its answer
        spool.append(row)
    assert await ledger.drain()

    assert sorted(rows, key=lambda row: row.id) == await rows_in(database)
    assert {"written": 1903, "garbled": 0, "refused": 0, "lost": 0} == ledger.counts
    assert 0 == ledger.num_pending
    await database.close()


async def test_a_row_that_the_database_refuses_holds_up_nobody(store_url: str, spool: Spool) -> None:
    database = await Database.open(store_url)
    ledger = Ledger(spool, LedgerTable(database), ManualClock())
    good = [a_row(number) for number in range(5)]
    for row in [*good[:2], a_row(6, input_tokens=2**63), *good[2:]]:
        ledger.append(row)
    assert await ledger.drain()

    assert good == await rows_in(database)
    assert {"written": 5, "garbled": 0, "refused": 1, "lost": 0} == ledger.counts
    assert 0 == ledger.num_pending
    ledger.close()
    assert [".bad"] == [path.suffix for path in spool.folder.iterdir()]
    await database.close()


async def test_what_tenants_have_spent(store_url: str, spool: Spool) -> None:
    database = await Database.open(store_url)
    ledger = Ledger(spool, LedgerTable(database), ManualClock())
    month, day, now = 1_000_000, 5_000_000, 9_000_000
    for number, (tenant, arrived) in enumerate(
        [
            ("a", month - 1),
            ("a", month),
            ("a", day - 1),
            ("a", day),
            ("a", now - 1),
            ("a", now),
            ("b", month + 5),
            ("c", month - 1),
        ]
    ):
        tokens = 10**number
        times = {
            "arrived_unix_ms": arrived,
            "ended_unix_ms": arrived if arrived >= now - 1 else arrived + 1,
        }  # some in the next window
        counts = {"input_tokens": tokens, "output_tokens": tokens, "cost_nano_usd": tokens * 3}
        ledger.append(a_row(number, tenant=tenant, **times, **counts))
    assert await ledger.drain()

    nothing = Spent(0, 0, 0, 0)
    assert {
        "a": Spent(222_000, 333_000, 222_220, 333_330),
        "b": Spent(0, 0, 2_000_000, 3_000_000),
        "c": nothing,
    } == await ledger.spent_since(day, month)
    await database.close()


async def test_a_record_that_ends_is_a_row(spool: Spool) -> None:
    store = MemoryStore()
    ledger = Ledger(spool, store, ManualClock(now_s=105.0))
    record = GenerationRecord(request_id="req-1", tenant="acme", model="kimi-k3", arrived_s=100.0, arrived_unix_ms=1_000_000)
    ledger.ended(record)
    assert await ledger.drain()

    assert [("req-1", 1_005_000, "cancelled")] == [
        (row.request_id, row.ended_unix_ms, row.outcome) for row in store.rows.values()
    ]


async def test_run_writes_what_comes_and_what_the_dead_left(tmp_path: Path) -> None:
    dead = Spool(tmp_path)
    dead.append(a_row(1))
    kill(dead)
    store = MemoryStore()
    ledger = Ledger(Spool(tmp_path), store, SystemClock())
    async with running(ledger):
        await until(lambda: "id-1" in store.rows)
        for number in range(2, 1000):
            ledger.append(a_row(number))
        await until(kept_back(ledger))

    assert 999 == len(store.rows)
    assert {"written": 999, "garbled": 0, "refused": 0, "lost": 0} == ledger.counts


async def test_rows_that_come_together_are_written_together(spool: Spool) -> None:
    store = FaultyStore(MemoryStore())
    ledger = Ledger(spool, store, SystemClock())
    async with running(ledger):
        for number in range(50):
            ledger.append(a_row(number))
            await asyncio.sleep(0)
        await until(kept_back(ledger))

    assert store.num_inserts <= 10


async def test_away_and_back_are_said_once_each(spool: Spool) -> None:
    store = FaultyStore(MemoryStore())
    store.faults = ["away"] * 3
    ledger = Ledger(spool, store, SystemClock())
    with capture_logs() as logged:
        ledger.append(a_row(1))
        async with running(ledger):
            await until(kept_back(ledger))

    assert ["ledger_away", "ledger_back"] == [line["event"] for line in logged]
    assert 4 == store.num_inserts


async def test_an_orderly_stop_leaves_to_the_next_start_what_it_cannot_write(spool: Spool) -> None:
    store = FaultyStore(MemoryStore())
    ledger = Ledger(spool, store, SystemClock())
    for number in range(7):
        ledger.append(a_row(number))
    store.faults = ["away"] * 1000
    assert 7 == await ledger.flush(0.15)
    ledger.close()

    store.faults = []
    heir = Ledger(Spool(spool.folder), store, SystemClock())
    await heir.adopt()
    assert 0 == await heir.flush(10.0)
    assert isinstance(store.inner, MemoryStore)
    assert 7 == len(store.inner.rows)


@pytest.mark.parametrize("busy_timeout_s", [0.05, 3.0], ids=["gives up", "waits"])
async def test_a_locked_sqlite_file(
    spool: Spool, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, busy_timeout_s: float
) -> None:
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_S", busy_timeout_s)
    database = await Database.open(sqlite_url)
    ledger = Ledger(spool, LedgerTable(database), SystemClock())
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    async with running(ledger):
        ledger.append(a_row(1))
        longest_s = await longest_turn_s(0.4)
        ledger.append(a_row(2))
        assert 2 == ledger.num_pending
        other.execute("COMMIT")
        other.close()
        await until(kept_back(ledger))

    assert [a_row(1), a_row(2)] == await rows_in(database)
    assert longest_s < 2.0  # who would wait for the lock on the loop, would wait for all of it
    await database.close()


async def test_a_postgresql_that_stops_hangs_and_returns(own_postgres: Postgres, spool: Spool) -> None:
    database = await Database.open(own_postgres.new_database(), command_timeout_s=0.2)
    ledger = Ledger(spool, LedgerTable(database), SystemClock())
    ledger.append(a_row(1))
    assert await ledger.drain()

    own_postgres.stop()
    ledger.append(a_row(2))
    assert not await ledger.drain()
    own_postgres.start()
    assert 0 == await ledger.flush(20.0)

    connected = [a_row(number) for number in range(3, 900)]
    for row in connected:
        ledger.append(row)
    own_postgres.stop()
    async with running(ledger):
        await until(lambda: ledger._num_failures > 1)
        own_postgres.start()
        await until(kept_back(ledger))

    assert sorted([a_row(1), a_row(2), *connected], key=lambda row: row.id) == await rows_in(database)
    await database.close()


async def test_a_database_that_does_not_answer(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(MemoryStore):
        is_silent = True

        async def insert(self, rows: object) -> list[LedgerRow]:
            if self.is_silent:
                await asyncio.Event().wait()
            return await super().insert(rows)  # type: ignore[arg-type]

    monkeypatch.setattr(ledger_module, "WRITE_TIMEOUT_S", 0.02)
    store = Silent()
    ledger = Ledger(spool, store, SystemClock())
    ledger.append(a_row(1))
    assert not await ledger.drain()
    store.is_silent = False
    assert await ledger.drain()

    assert ["id-1"] == list(store.rows)


async def test_a_database_that_is_not_there_yet(tmp_path: Path) -> None:
    blocker = tmp_path / "var"
    blocker.write_text("")  # a file where the database's folder is to be
    database = Database(f"sqlite:///{blocker}/gateway.db")
    ledger = Ledger(Spool(tmp_path / "spool"), LedgerTable(database), ManualClock())
    ledger.append(a_row(1))
    assert not await ledger.drain()
    blocker.unlink()
    assert await ledger.drain()

    assert [a_row(1)] == await rows_in(database)
    await database.close()


class Process:
    """A gateway of its own, which tells what has ended."""

    def __init__(self, folder: Path, url: str, name: str) -> None:
        self._said = folder.parent / f"{name}.said"
        self._name = name
        self._url = url
        with self._said.open("wb") as said:
            self._process = subprocess.Popen([sys.executable, str(PROCESS), str(folder), url, name], stdout=said)

    def has_written(self) -> bool:
        """Whether the table has some of its rows."""
        with closing(sqlite3.connect(self._url.removeprefix("sqlite:///"))) as connection, suppress(sqlite3.OperationalError):
            return bool(connection.execute("SELECT 1 FROM ledger WHERE tenant = ? LIMIT 1", (self._name,)).fetchall())
        return False

    def kill(self) -> set[str]:
        """Kill it, whatever it is doing, and return the rows whose requests had ended."""
        self._process.kill()
        assert -signal.SIGKILL == self._process.wait(20)
        return {line.decode().strip() for line in self._said.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")}


async def test_killed_processes_in_one_folder_lose_nothing(tmp_path: Path, sqlite_url: str) -> None:
    """Two write to one folder and one table at once; one is killed, then the other; a third takes over what they left."""
    folder = tmp_path / "spool"
    processes = [Process(folder, sqlite_url, name) for name in ("one", "other")]
    ended: set[str] = set()
    try:
        for process in processes:
            await until(process.has_written)
    finally:
        for process in processes:
            ended |= process.kill()
    database = await Database.open(sqlite_url)
    before = {row.id for row in await rows_in(database)}
    ledger = Ledger(Spool(folder), LedgerTable(database), SystemClock())
    await ledger.adopt()
    assert 0 == await ledger.flush(30.0)
    rows = await rows_in(database)
    ids = {row.id for row in rows}
    ledger.close()
    await database.close()

    assert ended <= ids
    assert len(ids) == len(rows)
    assert len(ids - ended) <= 2  # of each process, the row whose end it could not tell any more
    assert all(int(row.id[-6:]) == row.input_tokens for row in rows)
    assert 0 < len(before) < len(ids)  # they were killed while rows waited
    assert [] == [name for name in os.listdir(folder) if not name.endswith(".bad")]
