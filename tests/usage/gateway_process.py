"""A process that ends requests as fast as it can, until it is killed: what it has said on standard output has ended.

`python gateway_process.py SPOOL_FOLDER DATABASE_URL NAME`
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from server import logs
from server.clock import SystemClock
from server.sections import LogSettings
from server.store.database import Database
from server.usage.ledger import Ledger
from server.usage.row import LedgerRow
from server.usage.spool import Spool
from server.usage.table import LedgerTable


async def main(folder: str, url: str, name: str) -> None:
    ledger = Ledger(Spool(Path(folder), max_segment_bytes=20_000), LedgerTable(Database(url)), SystemClock())
    async with asyncio.TaskGroup() as group:
        group.create_task(ledger.run())
        number = 0
        while True:
            for _ in range(20):
                row_id = f"{name}-{number:06d}"
                ledger.append(
                    LedgerRow(
                        id=row_id,
                        request_id=row_id,
                        tenant=name,
                        model="kimi-k3",
                        arrived_unix_ms=1,
                        ended_unix_ms=2,
                        outcome="finished",
                        input_tokens=number,
                    )
                )
                os.write(1, f"{row_id}\n".encode())
                number += 1
            await asyncio.sleep(0.005)


logs.configure(LogSettings(level="error"))
asyncio.run(main(*sys.argv[1:]))
