"""The ledger's table: rows in, sums out.

Role: the statements of `ledger.py`, for SQLite and PostgreSQL alike. Must not: retry; the ledger does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy import case, func, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from server.store.database import Database
from server.store.tables import ledger
from server.usage.row import LedgerRow
from server.usage.saying import say


class Spent(NamedTuple):
    """What one tenant has used: tokens (input and output) and nano-dollars, in the day and in the month."""

    tokens_of_day: int
    nano_usd_of_day: int
    tokens_of_month: int
    nano_usd_of_month: int


class LedgerTable:
    """The table in one database; see `ledger.RowStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def insert(self, rows: Sequence[LedgerRow]) -> list[LedgerRow]:
        """All in one transaction. Where the database refuses one for what it says, each in its own, and those refused are given
        back: one bad row must not hold up all that come after it."""
        try:
            await self._insert(rows)
        except (DBAPIError, ValueError, OverflowError) as error:
            if not _is_refusal(error):
                raise
        else:
            return []
        refused: list[LedgerRow] = []
        for row in rows:
            try:
                await self._insert([row])
            except (DBAPIError, ValueError, OverflowError) as error:
                if not _is_refusal(error):
                    raise
                say("error", "ledger_row_refused", row=row.id, request_id=row.request_id, error=type(error).__name__)
                refused.append(row)
        return refused

    async def spent_since(self, day_start_ms: int, month_start_ms: int) -> dict[str, Spent]:
        """What tenants have used, by name; a request counts when it came, as budgets count it. Raises `StoreError`."""
        arrived, ended, cost = ledger.c.arrived_unix_ms, ledger.c.ended_unix_ms, ledger.c.cost_nano_usd
        tokens = ledger.c.input_tokens + ledger.c.output_tokens
        is_today, is_of_month = arrived >= day_start_ms, arrived >= month_start_ms
        sums = (
            func.sum(case((is_today, tokens), else_=0)),
            func.sum(case((is_today, cost), else_=0)),
            func.sum(case((is_of_month, tokens), else_=0)),
            func.sum(case((is_of_month, cost), else_=0)),
        )
        # What came since then has ended since then, too, and the end has an index.
        query = select(ledger.c.tenant, *sums).where(ended >= min(day_start_ms, month_start_ms)).group_by(ledger.c.tenant)
        async with self._database.read() as connection:
            found = (await connection.execute(query)).all()
        return {tenant: Spent(*map(int, spent)) for tenant, *spent in found}

    async def _insert(self, rows: Sequence[LedgerRow]) -> None:
        statement = self._database.insert(ledger).on_conflict_do_nothing(index_elements=[ledger.c.id])
        values = [msgspec.structs.asdict(row) for row in rows]
        async with self._database.write() as connection:
            await connection.execute(statement, values)


def _is_refusal(error: Exception) -> bool:
    """Whether it is about the values, so that the same would be refused for ever. Source: SQLSTATE classes 22 and 23."""
    if not isinstance(error, DBAPIError):
        return True  # the driver could not even send them
    cause = getattr(error.orig, "driver_exception", None) or error.orig
    state = getattr(cause, "sqlstate", None)
    if isinstance(state, str):
        return state[:2] in ("22", "23")
    return isinstance(error, DataError | IntegrityError) or isinstance(cause, ValueError)  # the latter: asyncpg's own checks
