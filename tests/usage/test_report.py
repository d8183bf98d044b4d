"""Sums of the ledger, against sums by hand."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from server.models import usd
from server.store.database import Database
from server.usage.report import BY, UsageLine, report
from server.usage.row import LedgerRow
from server.usage.table import LedgerTable
from tests.usage.conftest import a_row

DAY_MS = 86_400_000
MIDNIGHT_MS = 1_735_689_600_000  # 2025-01-01
SUMS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "cost_nano_usd")

BYS = [("tenant",), ("model",), ("key",), ("day",), ("day", "tenant"), ("tenant", "model", "key", "day"), ()]


def some_rows() -> list[LedgerRow]:
    """Of four days, around midnights, with costs that no float has exactly."""
    choose = random.Random(1)
    return [
        a_row(
            number,
            tenant=choose.choice(["acme", 'b, "c"', "ünï"]),
            model=choose.choice(["kimi-k3", "small"]),
            key_id=choose.choice(["key-1", "key-2", None]),
            outcome=choose.choice(["finished", "finished", "cancelled", "limited"]),
            ended_unix_ms=MIDNIGHT_MS + choose.randrange(4) * DAY_MS + choose.choice([0, 1, DAY_MS // 2, DAY_MS - 1]),
            **{name: choose.randrange(2**40) for name in SUMS[:-1]},
            cost_nano_usd=choose.randrange(10**15),
        )
        for number in range(400)
    ]


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    database = await Database.open(store_url)
    yield database
    await database.close()


def by_hand(rows: list[LedgerRow], by: tuple[str, ...]) -> list[dict[str, Any]]:
    """The lines of a report, one row after the other."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = defaultdict(
        lambda: dict.fromkeys(("requests", "finished", "other", *SUMS), 0)
    )
    for row in rows:
        of = {
            "tenant": row.tenant,
            "model": row.model,
            "key": row.key_id,
            "day": datetime.fromtimestamp(row.ended_unix_ms / 1000, UTC).strftime("%Y-%m-%d"),
        }
        sums = groups[tuple(of[name] for name in by)]
        sums["requests"] += 1
        sums["finished" if row.outcome == "finished" else "other"] += 1
        for name in SUMS:
            sums[name] += getattr(row, name)
    lines = [{**dict.fromkeys(BY), **dict(zip(by, group, strict=True)), **sums} for group, sums in groups.items()]
    return sorted(lines, key=lambda line: [line[name] or "" for name in by])


async def test_sums_are_exact(database: Database) -> None:
    rows = some_rows()
    for by in BYS:
        assert [] == await report(database, by=by)
    assert [] == await LedgerTable(database).insert(rows)

    mine = [row for row in rows if row.tenant == "ünï" and row.ended_unix_ms >= MIDNIGHT_MS + DAY_MS]
    for by in BYS:
        assert by_hand(rows, by) == [msgspec.structs.asdict(line) for line in await report(database, by=by)]
        found = await report(database, tenant="ünï", since_unix_ms=MIDNIGHT_MS + DAY_MS, by=by)
        assert by_hand(mine, by) == [msgspec.structs.asdict(line) for line in found]


async def test_unknown_groups_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"`colour` is nothing to group by; use `tenant`"):
        await report(Database("sqlite://"), by=["tenant", "colour"])


@pytest.mark.parametrize(
    ("nano_usd", "text"),
    [
        (0, "0.00"),
        (1, "0.000000001"),
        (10_000_000, "0.01"),
        (1_500_000_000, "1.50"),
        (123_456_789_012_345_678_901, "123456789012.345678901"),
        (-1_250_000_000, "-1.25"),
    ],
)
def test_dollars_are_exact(nano_usd: int, text: str) -> None:
    assert text == usd(nano_usd)


def test_a_line_knows_its_dollars() -> None:
    counts = dict.fromkeys(("requests", "finished", "other", *SUMS[:-1]), 0)

    assert "0.0000003" == UsageLine(**counts, cost_nano_usd=300).cost_usd
