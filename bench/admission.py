"""What it costs to admit a request and settle it: CPU of this process, in memory and over a Redis on this machine.

    python -m bench.admission [--requests 4000] [--rounds 7]

Each request reserves with every limit and budget set, is told its headers, its cached tokens and 20 deltas, and settles. One
after the other, which is the dearest way (nothing shares a round trip), and 16 at once. Where the `limits` library is
installed, its moving window is measured beside it: one limit of many, and no settling. Prints medians over the rounds and the
goals; exit code 1 if one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from bench.processes import end_on_sigterm
from server.admission.admission import Admission
from server.admission.limits import Estimate, Usage
from server.admission.memory import MemoryStore
from server.admission.redis_store import RedisStore
from server.clock import SystemClock
from server.context import Budget, Limits, RequestContext, Tenant
from server.models import Price, ServedModel

GOALS_US = {"memory": 60.0, "redis": 250.0}
TENANT = Tenant(
    "acme",
    limits=Limits(10**9, 10**12, 10**12, 10**12, 10**6, 10**6),
    budget=Budget(10**14, 10**15, 10**14, 10**15),
)
CONTEXT = RequestContext("bench", TENANT)
MODEL = ServedModel("kimi-k3", "kimi_k3", ("reasoning",), price=Price(3 * 10**9, 3 * 10**8, 15 * 10**9))
ESTIMATE = Estimate(num_input_tokens=1000, max_output_tokens=1000, has_cap=True)
USAGE = Usage(1000, 500, 200, MODEL.price.nano_usd(1000, 500, 200))


async def _request(admission: Admission) -> None:
    ticket = await admission.reserve(CONTEXT, MODEL, ESTIMATE)
    _ = ticket.headers
    ticket.prefilled(500)
    for num_tokens in range(10, 210, 10):
        ticket.produced(num_tokens)
    ticket.settle(USAGE)


async def _cpu_us(request: Callable[[], Awaitable[None]], num_requests: int, num_at_once: int) -> float:
    """Microseconds of CPU of this process for each request."""

    async def client() -> None:
        for _ in range(num_requests // num_at_once):
            await request()

    since_s = time.process_time()
    await asyncio.gather(*(client() for _ in range(num_at_once)))
    return (time.process_time() - since_s) / num_requests * 1e6


@asynccontextmanager
async def _redis() -> AsyncIterator[str]:
    """A redis-server of our own, which keeps nothing; its address."""
    with tempfile.TemporaryDirectory(prefix="k3gw-bench-") as folder:
        path = Path(folder) / "redis.sock"
        command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: ASYNC220 - before anything is measured
        try:
            while not path.exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.01)
            yield f"unix://{path}"
        finally:
            server.terminate()
            server.wait()


@asynccontextmanager
async def _over_redis(url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(url, SystemClock(), deadline_s=1.0)
    running = asyncio.ensure_future(store.run())
    try:
        yield store
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def _limits_library(url: str) -> Callable[[], Awaitable[None]] | None:
    """One hit of the `limits` library's moving window; None where it is not installed."""
    try:
        library: Any = importlib.import_module("limits")
        aio: Any = importlib.import_module("limits.aio")
    except ImportError:
        return None
    storage = aio.storage.MemoryStorage() if url == "memory://" else aio.storage.RedisStorage(f"async+redis+{url}")
    limiter, limit = aio.strategies.MovingWindowRateLimiter(storage), library.RateLimitItemPerMinute(10**9)

    async def hit() -> None:
        await limiter.hit(limit, "acme")

    return hit


async def _measure(options: argparse.Namespace) -> int:
    clock, figures = SystemClock(), dict[str, list[float]]()

    async def rounds(name: str, request: Callable[[], Awaitable[None]], num_at_once: int) -> None:
        for _ in range(options.rounds):
            figures.setdefault(name, []).append(await _cpu_us(request, options.requests, num_at_once))

    in_memory = Admission(MemoryStore(clock), clock)
    await rounds("memory", lambda: _request(in_memory), 1)
    if (hit := _limits_library("memory://")) is not None:
        await rounds("`limits` library, memory, one limit", hit, 1)
    if shutil.which("redis-server") is None:
        print("redis-server is not installed: nothing is measured over it")
    else:
        async with _redis() as url, _over_redis(url) as store:
            shared = Admission(store, clock)
            await rounds("redis", lambda: _request(shared), 1)
            await rounds("redis, 16 at once", lambda: _request(shared), 16)
            if store.num_away:
                print(f"redis was away {store.num_away} times: its figures are not to be trusted")
    print(f"CPU of reserve + settle, medians of {options.rounds} rounds of {options.requests} requests")
    is_missed = False
    for name, values in figures.items():
        goal_us = GOALS_US.get(name)
        is_missed |= goal_us is not None and median(values) > goal_us
        goal = f"   goal {goal_us:5.0f}" if goal_us else ""
        print(f"  {name:40} {median(values):7.1f} us   ({min(values):.1f} to {max(values):.1f}){goal}")
    return int(is_missed)


def main() -> int:
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=7)
    code: int = uvloop.run(_measure(parser.parse_args()))
    return code


if __name__ == "__main__":
    sys.exit(main())
