"""What a gateway finds when it opens its store."""

from __future__ import annotations

from pathlib import Path

from server.clock import ManualClock
from server.settings import Settings
from server.storage import Storage
from server.usage.spool import Spool
from server.usage.table import Spent
from tests.usage.conftest import a_row

NOW_S = 1_796_040_000.0
"""2026-11-30 12:00 UTC."""


async def test_what_a_killed_gateway_has_left_counts_against_budgets(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    now_ms, day_ms = int(NOW_S * 1000), 86_400_000
    for number, arrived_ms in enumerate([now_ms - 1000, now_ms - day_ms, now_ms - 31 * day_ms]):
        times = {"arrived_unix_ms": arrived_ms, "ended_unix_ms": arrived_ms}
        spool.append(a_row(number, tenant="acme", **times, input_tokens=10, output_tokens=5, cost_nano_usd=7))
    spool.close()
    storage = Storage(
        Settings.model_validate({
            "storage": {"ledger_url": f"sqlite:///{tmp_path / 'gateway.db'}", "spool_path": str(tmp_path / "spool")},
            "tenants": {"acme": {}},
        }),
        ManualClock(NOW_S),
    )  # fmt: skip
    try:
        assert {"acme": Spent(15, 7, 30, 14)} == await storage.open()
        assert 0 == storage.ledger.num_pending
    finally:
        storage.ledger.close()
        await storage.database.close()
