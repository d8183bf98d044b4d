"""What `http.workers` costs and brings: `python -m bench.workers --redis URL [--workers 1,2] [--streams 64] [--rounds 3]`.

Gateways with the scripted engine stand side by side, each with so many workers, and are asked in turns; the client is one process
on the same machine. Of each: chunks a second, CPU seconds per 1000 chunks of all its processes, memory, and seconds to the start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench.drain import KEY, Served, served
from bench.load import Measured, cpu_s, request, stream
from bench.processes import end_on_sigterm

SCRIPT = [{"reply": [{"repeat": {"times": 100_000, "of": [{"text": "a"}]}}]}]
MIB = 1024 * 1024


def pids(gateway: Served) -> list[int]:
    """Of all its processes."""
    found = [gateway.process.pid]
    for pid in found:  # grows meanwhile
        found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split())
    return found


def memory_bytes(pid: int) -> int:
    """Of one process; what several share counts in parts."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


async def measure(gateway: Served, num_streams: int, num_tokens: int) -> Measured:
    """`num_streams` answers at once."""
    measured, all_pids = Measured(), pids(gateway)
    before_s, started_s = sum(map(cpu_s, all_pids)), time.perf_counter()
    requests = (request(index, num_tokens, "kimi-k3", KEY) for index in range(num_streams))
    await asyncio.gather(*(stream(gateway.port, one, measured) for one in requests))
    measured.cpu_s, measured.wall_s = sum(map(cpu_s, all_pids)) - before_s, time.perf_counter() - started_s
    return measured


async def compare(options: argparse.Namespace) -> dict[int, dict[str, Any]]:
    """Number of workers -> figures, medians of the rounds."""
    counts = [int(count) for count in options.workers.split(",")]
    rounds: dict[int, list[Measured]] = {count: [] for count in counts}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="k3gw-bench-")))
        gateways: dict[int, Served] = {}
        for count in counts:
            own = folder / str(count)
            own.mkdir()
            (own / "script.json").write_text(json.dumps(SCRIPT))
            storage = {"ledger_url": f"sqlite:///{own}/gateway.db", "spool_path": f"{own}/spool", "limits_url": options.redis}
            engine = {"kind": "scripted", "script": f"{own}/script.json"}
            http = {"port": 0, "workers": count}
            log = {"level": "warning"}
            gateways[count] = await stack.enter_async_context(served(own, [], http=http, storage=storage, engine=engine, log=log))
            await measure(gateways[count], options.streams, 64)
        for _ in range(options.rounds):
            for count, gateway in gateways.items():
                rounds[count].append(await measure(gateway, options.streams, options.tokens))
        return {count: _figures(rounds[count], gateway) for count, gateway in gateways.items()}


def _figures(rounds: list[Measured], gateway: Served) -> dict[str, Any]:
    return {
        "chunks_per_s": round(median(one.num_chunks / one.wall_s for one in rounds)),
        "cpu_s_per_1000_chunks": round(median(1000 * one.cpu_s / one.num_chunks for one in rounds), 4),
        "cores": round(median(one.cpu_s / one.wall_s for one in rounds), 2),
        "memory_mib": round(sum(map(memory_bytes, pids(gateway))) / MIB),
        "started_s": round(gateway.started_s, 1),
    }


def main() -> None:
    """Print one JSON line for each number of workers."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", required=True, help="where limits are kept, e.g. `redis://127.0.0.1:6379/0`")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    for count, figures in asyncio.run(compare(parser.parse_args())).items():
        print(json.dumps({"workers": count, **figures}))


if __name__ == "__main__":
    main()
