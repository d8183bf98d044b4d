"""Whatever fails, and whenever the process dies: each row that was taken is in the table once, as it was."""

from __future__ import annotations

import asyncio
import os
import tempfile
from errno import ENOSPC
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.clock import ManualClock
from server.store.database import Database
from server.usage.ledger import Ledger
from server.usage.row import LedgerRow
from server.usage.spool import Spool
from server.usage.table import LedgerTable
from tests.usage.conftest import FaultyStore, Killed, MemoryStore, a_row, kill, rows_in

write = os.write

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6)),
        st.tuples(st.just("drain"), st.sampled_from(["none", "away", "unheard", "half", "killed before", "killed after"])),
        st.tuples(st.just("disk"), st.sampled_from(["works", "full", "takes half", "killed in write"])),
        st.tuples(st.sampled_from(["kill", "adopt", "stop"]), st.none()),
    ),
    max_size=30,
)


class Machine:
    """One folder, one table, and one gateway after another."""

    def __init__(self, folder: Path, store: FaultyStore) -> None:
        self.folder = folder
        self.store = store
        self.disk = "works"
        self.taken: dict[str, LedgerRow] = {}
        self.unsure: dict[str, LedgerRow] = {}  # in memory, or under way, when the process died
        self.start()

    def start(self) -> None:
        self.spool = Spool(self.folder, max_segment_bytes=2000)
        self.ledger = Ledger(self.spool, self.store, ManualClock())

    def die(self) -> None:
        for row_id in self.spool._kept:
            self.unsure[row_id] = self.taken.pop(row_id)
        kill(self.spool)
        self.start()

    def write(self, fd: int, data: bytes) -> int:
        if self.disk == "full":
            raise OSError(ENOSPC, "No space left on device")
        if self.disk == "takes half":
            return write(fd, data[: len(data) // 2])
        if self.disk == "killed in write":
            write(fd, data[: len(data) // 3])
            raise Killed
        return write(fd, data)

    async def do(self, step: str, value: object) -> None:
        if step == "append":
            assert isinstance(value, int)
            for _ in range(value):
                row = a_row(len(self.taken) + len(self.unsure))
                self.unsure[row.id] = row
                self.ledger.append(row)
                self.taken[row.id] = self.unsure.pop(row.id)
        elif step == "drain":
            self.store.faults = [str(value)]
            await self.ledger.drain()
        elif step == "disk":
            self.disk = str(value)
        elif step == "adopt":
            await self.ledger.adopt()
        elif step == "stop":
            await self.ledger.flush(0.0)
            for row_id in self.spool._kept:
                self.unsure[row_id] = self.taken.pop(row_id)
            self.ledger.close()
            self.start()
        else:
            self.die()

    async def run(self, steps: list[tuple[str, object]]) -> None:
        for step, value in steps:
            try:
                await self.do(step, value)
            except Killed:
                self.disk = "works"
                self.die()
        self.disk = "works"
        self.store.faults = []
        await self.ledger.adopt()
        assert 0 == await self.ledger.flush(30.0)


async def live(steps: list[tuple[str, object]], store: FaultyStore) -> tuple[Machine, set[str]]:
    """The machine at the end, and the kinds of files that it leaves."""
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder), store)
        with patch.object(os, "write", machine.write):
            await machine.run(steps)
        machine.ledger.close()
        return machine, {os.path.splitext(name)[1] for name in os.listdir(folder)}


def assert_whole(machine: Machine, rows: list[LedgerRow]) -> None:
    found = {row.id: row for row in rows}
    assert len(rows) == len(found)
    assert machine.taken.items() <= found.items()
    assert found.items() <= {**machine.taken, **machine.unsure}.items()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(STEPS)
def test_each_row_once(steps: list[tuple[str, object]]) -> None:
    store = MemoryStore()
    machine, left = asyncio.run(live(steps, FaultyStore(store)))

    assert_whole(machine, list(store.rows.values()))
    assert left <= {".bad"}  # where a line was torn
    assert machine.spool.num_lost == 0


@pytest.mark.long
@settings(max_examples=2000, deadline=None)
@given(STEPS)
def test_each_row_once_in_many_ways(steps: list[tuple[str, object]]) -> None:
    test_each_row_once.hypothesis.inner_test(steps)  # type: ignore[attr-defined]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(STEPS)
def test_each_row_once_in_a_real_table(steps: list[tuple[str, object]]) -> None:
    async def run() -> tuple[Machine, list[LedgerRow]]:
        with tempfile.TemporaryDirectory() as folder:
            database = await Database.open(f"sqlite:///{folder}/gateway.db")
            machine, _ = await live(steps, FaultyStore(LedgerTable(database)))
            rows = await rows_in(database)
            await database.close()
            return machine, rows

    assert_whole(*asyncio.run(run()))
