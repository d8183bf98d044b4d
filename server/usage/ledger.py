"""From the spool to the database, beside the requests.

Role: `append` is called as each request ends; `run` brings the rows to the database whenever that takes them. A database that is
slow, locked, gone or not there yet delays rows and loses none. Must not: block the event loop, or let a request wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from server.clock import Clock
from server.quoting import cut
from server.record import GenerationRecord
from server.usage.row import LedgerRow, row_of
from server.usage.saying import say
from server.usage.segment import Lines, read_lines
from server.usage.spool import MAX_BATCH_ROWS, Batch, Spool, sync_all
from server.usage.table import Spent

GATHER_S: Final = 0.1  # rows of this long go together
SYNC_EVERY_S: Final = 0.2
ADOPT_EVERY_S: Final = 30.0  # not only at the start: children of a dead process may hold its locks for a while
WRITE_TIMEOUT_S: Final = 30.0
FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 5.0


class RowStore(Protocol):
    """The ledger's table; `table.LedgerTable` is the real one."""

    async def insert(self, rows: Sequence[LedgerRow]) -> list[LedgerRow]:
        """Write all rows whose ids are not there yet, and give back those that can't ever be written. Anything it raises means
        "not now"; some of the rows may be there nevertheless."""
        ...

    async def spent_since(self, day_start_ms: int, month_start_ms: int) -> dict[str, Spent]:
        """What tenants have used, by name."""
        ...


class Ledger:
    """The rows of one gateway.

    To stop in order: cancel `run`, await `flush`, `close`; what could not be written is in the spool then, for the next start.
    """

    def __init__(self, spool: Spool, store: RowStore, clock: Clock) -> None:
        self._spool = spool
        self._store = store
        self._clock = clock
        self._num_written = 0
        self._num_refused = 0
        self._away_since_s: float | None = None
        self._num_failures = 0
        self._draining = asyncio.Lock()
        self._has_work = asyncio.Event()

    @property
    def num_pending(self) -> int:
        """Rows that the database does not have yet."""
        return self._spool.num_pending

    @property
    def counts(self) -> dict[str, int]:
        """Rows by what became of them: `written`; `garbled`, found unreadable in the spool; `refused`, by the database for what
        they say; `lost`, because neither disk nor memory could take them."""
        return {
            "written": self._num_written,
            "garbled": self._spool.num_garbled,
            "refused": self._num_refused,
            "lost": self._spool.num_lost,
        }

    def ended(self, record: GenerationRecord) -> None:
        """Keep the row of a request that has ended. Never raises."""
        self.append(row_of(record, self._clock.monotonic_s()))

    def append(self, row: LedgerRow) -> None:
        """Keep a row. Never raises; one write to a file."""
        self._spool.append(row)
        self._has_work.set()

    async def run(self) -> None:
        """Bring rows to the database until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_synced())
            await self._keep_drained()

    async def adopt(self) -> None:
        """Take over what dead processes have left in the folder."""
        self._spool.take_over(await asyncio.to_thread(self._spool.adopt))

    async def drain(self) -> bool:
        """Write what waits now; False where the database does not take it."""
        async with self._draining:
            while self._spool.recover():  # noqa: ASYNC110 - not a wait: requests go on between
                await asyncio.sleep(0)
            num_left = self._spool.num_pending
            try:
                while batch := await self._next_batch():
                    await self._write(batch)
                    num_left -= max(batch.num_lines, len(batch.rows))
                    if num_left <= 0:
                        break  # what came meanwhile is better written together
            except Exception as error:  # noqa: BLE001 - whatever it is, the rows stay where they are, and it is said below
                self._failed(error)
                return False
            self._succeeded()
            return True

    async def flush(self, timeout_s: float) -> int:
        """Write what waits, for as long as `timeout_s`; returns how many rows are left to the spool."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not await self.drain() or self.num_pending:  # noqa: ASYNC110 - nothing tells when a database is back
                    await asyncio.sleep(0 if self._away_since_s is None else FIRST_RETRY_S)
        if self.num_pending:
            say("warning", "ledger_not_flushed", pending_rows=self.num_pending)
        await asyncio.to_thread(sync_all, self._spool.unsynced())
        return self.num_pending

    async def spent_since(self, day_start_ms: int, month_start_ms: int) -> dict[str, Spent]:
        """What the database says each tenant has used since this day and this month began, by name.

        `adopt` and `drain` first, so that it has what a crashed gateway left. Raises `StoreError`.
        """
        return await self._store.spent_since(day_start_ms, month_start_ms)

    def close(self) -> None:
        """Leave the spool to whoever comes next."""
        self._spool.close()

    async def _keep_drained(self) -> None:
        adopt_at_s = self._clock.monotonic_s()
        while True:
            if self._clock.monotonic_s() >= adopt_at_s:
                await self.adopt()
                adopt_at_s = self._clock.monotonic_s() + ADOPT_EVERY_S
            self._has_work.clear()
            if await self.drain():
                if not self.num_pending:
                    await _wait(self._has_work, ADOPT_EVERY_S)
                await asyncio.sleep(GATHER_S)
            else:
                await asyncio.sleep(min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(self._num_failures - 1, 10)))

    async def _keep_synced(self) -> None:
        while True:
            await asyncio.sleep(SYNC_EVERY_S)
            if descriptors := self._spool.unsynced():
                await asyncio.to_thread(sync_all, descriptors)

    async def _next_batch(self) -> Batch | None:
        found = self._spool.next_range()
        if found is None:
            return self._spool.kept()
        segment, end_bytes = found
        try:
            lines = await asyncio.to_thread(read_lines, segment.fd, segment.num_done_bytes, end_bytes, MAX_BATCH_ROWS)
        except OSError as error:  # nothing behind it would ever be written
            say("error", "spool_file_unreadable", file=str(segment.path), error=str(error))
            lines = Lines(num_lines=max(1, segment.num_rows), end_bytes=end_bytes)
        return Batch(lines.rows, segment, lines.num_lines, lines.end_bytes)

    async def _write(self, batch: Batch) -> None:
        refused: list[LedgerRow] = []
        if batch.rows:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                refused = await self._store.insert(batch.rows)
        self._num_written += len(batch.rows) - len(refused)
        self._num_refused += len(refused)
        self._spool.written(batch, refused)

    def _failed(self, error: Exception) -> None:
        self._num_failures += 1
        if self._away_since_s is None:
            self._away_since_s = self._clock.monotonic_s()
            reason = cut(str(error).partition("\n")[0] or type(error).__name__, 300)
            say("error", "ledger_away", error=reason, pending_rows=self.num_pending)

    def _succeeded(self) -> None:
        self._num_failures = 0
        if self._away_since_s is not None:
            away_s = round(self._clock.monotonic_s() - self._away_since_s, 1)
            self._away_since_s = None
            say("warning", "ledger_back", away_seconds=away_s)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    """Until the event is set, or the time is over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
