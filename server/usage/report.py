"""What was used and what it cost, summed up from the ledger.

Role: what `usage` prints and the admin API answers. Sums are of whole numbers; dollars become decimals only as text, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from sqlalchemy import Integer, Label, case, func, literal_column, select

from server.models import usd
from server.store.database import Database
from server.store.tables import ledger

_DAY_MS: Final = literal_column("86400000", Integer)  # no parameter: PostgreSQL would take the grouped one for another
_KEYS: Final[dict[str, Label[Any]]] = {
    "tenant": ledger.c.tenant.label("tenant"),
    "model": ledger.c.model.label("model"),
    "key": ledger.c.key_id.label("key"),
    "day": (ledger.c.ended_unix_ms // _DAY_MS).label("day"),
}
BY: Final = tuple(_KEYS)
"""What lines can be grouped by."""


class UsageLine(msgspec.Struct, frozen=True, kw_only=True):
    """One group's sums.

    `tenant`, `model`, `key` (its id) and `day` (as in `2026-01-31`, UTC, of the request's end) are None where not grouped by;
    `key` also for requests without one. `finished`: requests whose answer came to its end; `other`: all others.
    """

    tenant: str | None = None
    model: str | None = None
    key: str | None = None
    day: str | None = None
    requests: int
    finished: int
    other: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_nano_usd: int

    @property
    def cost_usd(self) -> str:
        """The cost in dollars, exact."""
        return usd(self.cost_nano_usd)


async def report(
    database: Database, *, tenant: str | None = None, since_unix_ms: int = 0, by: Sequence[str] = ("tenant",)
) -> list[UsageLine]:
    """The sums of requests that ended at `since_unix_ms` or later, of one tenant or of all, sorted by what they are grouped `by`.

    No requests, no lines. Raises `ValueError` for an unknown `by`, `StoreError` when the store can't be asked.
    """
    if unknown := [name for name in by if name not in _KEYS]:
        raise ValueError(f"`{unknown[0]}` is nothing to group by; use {', '.join(f'`{name}`' for name in BY)}")
    names = list(dict.fromkeys(by))
    keys = [_KEYS[name] for name in names]
    sums = {
        "requests": func.count(),
        "finished": func.coalesce(func.sum(case((ledger.c.outcome == "finished", 1), else_=0)), 0),
        **{
            name: func.coalesce(func.sum(ledger.c[name]), 0)
            for name in ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "cost_nano_usd")
        },
    }
    query = select(*keys, *(column.label(name) for name, column in sums.items())).where(ledger.c.ended_unix_ms >= since_unix_ms)
    if tenant is not None:
        query = query.where(ledger.c.tenant == tenant)
    query = query.group_by(*(key.element for key in keys))
    async with database.read() as connection:
        found = (await connection.execute(query)).mappings().all()
    lines = [_line(dict(row), names, sums) for row in found]
    lines.sort(key=lambda line: [getattr(line, name) or "" for name in names])
    return [line for line in lines if line.requests]


def _line(row: dict[str, Any], names: Sequence[str], sums: dict[str, Any]) -> UsageLine:
    groups: dict[str, Any] = {name: row[name] for name in names}
    if "day" in groups:
        groups["day"] = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=int(row["day"]))).date().isoformat()
    counts: dict[str, Any] = {name: int(row[name]) for name in sums}  # PostgreSQL sums whole numbers up to a `Decimal`
    return UsageLine(**groups, **counts, other=counts["requests"] - counts["finished"])
