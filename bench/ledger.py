"""What a ledger row costs the request that it is of, and how fast rows reach the database.

    python -m bench.ledger [--rows 20000] [--url sqlite:///…|postgresql://…]

The first figure is what `Ledger.append` takes, the write to the spool's file included, on the thread of the event loop: beside
nothing, and while the disk syncs and the rows before are drained. Prints the figures as JSON; exits 1 above `MOST_US`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from typing import Final

from bench.processes import end_on_sigterm
from server.clock import SystemClock
from server.record import GenerationRecord
from server.store.database import Database
from server.usage.ledger import Ledger
from server.usage.spool import Spool
from server.usage.table import LedgerTable

MOST_US: Final = 15.0


def _end(ledger: Ledger, number: int) -> float:
    """Seconds that the end of one request takes the ledger."""
    record = GenerationRecord(
        request_id=f"req-{number:032x}",
        tenant="acme",
        model="kimi-k3",
        arrived_s=1.0,
        arrived_unix_ms=1_700_000_000_000,
        key_id="key_0123456789",
        num_input_tokens=12_345,
        num_output_tokens=678,
        admitted_s=1.1,
        outcome="finished",
        finish_reason="stop",
        cost_nano_usd=123_456_789,
        ended_s=2.0,
    )
    begun_s = time.perf_counter()
    ledger.ended(record)
    return time.perf_counter() - begun_s


def _us(seconds: list[float]) -> dict[str, float]:
    cuts = quantiles(seconds, n=100)
    return {"mean": round(sum(seconds) / len(seconds) * 1e6, 1), "p50": round(cuts[49] * 1e6, 1), "p99": round(cuts[98] * 1e6, 1)}


async def _measure(folder: Path, url: str, num_rows: int) -> dict[str, object]:
    database = await Database.open(url)
    ledger = Ledger(Spool(folder / "spool"), LedgerTable(database), SystemClock())
    alone_us = _us([_end(ledger, number) for number in range(num_rows)])
    begun_s = time.perf_counter()
    await ledger.flush(600.0)
    drain_s = time.perf_counter() - begun_s
    beside: list[float] = []
    async with asyncio.TaskGroup() as group:
        running = group.create_task(ledger.run())
        for number in range(num_rows // 10):
            beside.append(_end(ledger, number))
            await asyncio.sleep(0.001)
        running.cancel()
    num_left = await ledger.flush(600.0)
    ledger.close()
    await database.close()
    return {
        "append_us": alone_us,
        "append_beside_drain_us": _us(beside),
        "drained_rows_per_s": round(num_rows / drain_s),
        "rows": ledger.counts,
        "left": num_left,
    }


def main() -> int:
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--url", help="a database; by default a new SQLite file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="k3gw-ledger-") as folder:
        url = options.url or f"sqlite:///{folder}/gateway.db"
        figures = asyncio.run(_measure(Path(folder), url, options.rows))
    print(json.dumps(figures, indent=2))
    append_us = figures["append_us"]
    assert isinstance(append_us, dict)
    return 0 if append_us["mean"] <= MOST_US else 1


if __name__ == "__main__":
    sys.exit(main())
