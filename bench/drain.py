"""Start, drain and death of a gateway, as its clients see them: `python -m bench.drain`.

Three figures: the time from the command to the first 200 of `/ready`; what a drain costs while streams run and requests arrive;
and how soon each stream has its error after `kill -9` of the engine's process (with `--model`, which is real vLLM).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.ending_load import UNREACHABLE, WHOLE, Clients, Request, arrivals, fates
from bench.processes import end_on_sigterm

KEY = "k3gw-bench-key-0123456789"
END: list[Any] = [{"control": ["</response>", "</message>"]}, "stop"]
LONG, SHORT = "tell me all", "hi"
START_S = 300.0
ROOT = Path(__file__).resolve().parents[1]


def script(long_s: float) -> list[Any]:
    """Answers of `long_s` with forty tokens a second, and short ones."""
    long = {"when": {"contains": LONG}, "step_interval_ms": 25, "reply": [{"text": "x" * round(40 * long_s)}, *END]}
    return [long, {"step_interval_ms": 5, "reply": [{"text": "The answer is yes."}, *END]}]


@dataclass
class Served:
    """A gateway's process. `started_s`: how long until `/ready` was a 200."""

    process: asyncio.subprocess.Process
    folder: Path
    port: int = 0
    started_s: float = 0.0
    lines: list[str] = field(default_factory=list)

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def status_of(self, path: str) -> int:
        """The status of a GET on a new connection; 0 where nobody listens."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return 0
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        head = await reader.read(64)
        writer.close()
        return int(head[9:12] or 0)

    async def until_unready(self) -> None:
        """Until `/ready` is a 200 no more."""
        while await self.status_of("/ready") == 200:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)

    def rows(self) -> list[tuple[str, str, int]]:
        """Of the ledger: request, outcome, tokens of the answer."""
        with closing(sqlite3.connect(self.folder / "gateway.db")) as connection:
            return connection.execute("SELECT request_id, outcome, output_tokens FROM ledger").fetchall()


@asynccontextmanager
async def served(
    folder: Path, arguments: list[str], *, on_start: Callable[[Served], Awaitable[None]] | None = None, **settings: Any
) -> AsyncGenerator[Served, None]:
    """A gateway that is ready; gone at the end. `arguments`: more of the command line. `on_start` is awaited before that.

    Raises `RuntimeError` with the exit code and all that was said where it does not become ready.
    """
    storage = {"ledger_url": f"sqlite:///{folder}/gateway.db", "spool_path": f"{folder}/spool"}
    limits = {"default": {"limits": {"requests_per_minute": 10**9, "concurrent_requests": 10**6}}}
    config = {"http": {"port": 0}, "tenancy": {"key": KEY}, "storage": storage, "tenants": limits, **settings}
    (folder / "gateway.json").write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "server", "serve", "--config", str(folder / "gateway.json"), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("K3GW_")}
    begun_s = time.monotonic()
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment, stderr=asyncio.subprocess.PIPE)
    gateway = Served(process, folder)
    has_banner = asyncio.Event()
    reading = asyncio.ensure_future(_read(gateway, has_banner))
    try:
        if on_start is not None:
            await on_start(gateway)
        async with asyncio.timeout(START_S):
            await has_banner.wait()
        found = re.search(r"base URL\s+http://127.0.0.1:(\d+)/v1", gateway.log)
        if found is None:
            raise RuntimeError(f"the gateway did not start; exit code {await process.wait()}:\n{gateway.log}")
        gateway.port = int(found[1])
        if await gateway.status_of("/ready") != 200:
            raise RuntimeError("it says that it is ready, and is not")
        gateway.started_s = time.monotonic() - begun_s
        yield gateway
    finally:
        if process.returncode is None:
            process.kill()
        await reading
        await process.wait()


async def _read(gateway: Served, has_banner: asyncio.Event) -> None:
    assert gateway.process.stderr is not None
    async for line in gateway.process.stderr:
        gateway.lines.append(line.decode())
        if b"curl " in line:
            has_banner.set()
    has_banner.set()


@dataclass
class Drained:
    """What a drain came to.

    `streams` ran when it began, `arrived` came before and meanwhile. `unready_s`: how long until `/ready` was a 503.
    """

    streams: list[Request]
    arrived: list[Request]
    rows: Counter[tuple[str, str]]
    exit_code: int
    began_s: float
    unready_s: float
    took_s: float

    @property
    def answered(self) -> list[Request]:
        """All that were told something."""
        return [request for request in self.streams + self.arrived if request.fate != UNREACHABLE]

    @property
    def num_rows_lost(self) -> int:
        """Requests that were answered and have not exactly one row, or one that says something else."""
        wanted = Counter((request.name, "finished" if request.fate == WHOLE else "rejected") for request in self.answered)
        return (wanted - self.rows).total() + (self.rows - wanted).total()


async def drain(folder: Path, *, num_streams: int, rate_per_s: float, before_s: float = 1.0, long_s: float = 5.0) -> Drained:
    """SIGTERM to a scripted gateway as soon as `num_streams` of `long_s` each have all begun.

    Other requests arrive from `before_s` before the streams on, until it is gone.
    """
    (folder / "script.json").write_text(json.dumps(script(long_s)), encoding="utf-8")
    seats = {"context_length": 1 << 20, "seats": num_streams + 100}
    engine = {"kind": "scripted", "script": str(folder / "script.json"), "overrides": seats}
    async with served(folder, [], engine=engine) as gateway:
        clients, others = Clients(gateway.port, KEY), Clients(gateway.port, KEY)
        exited = asyncio.ensure_future(gateway.process.wait())
        async with asyncio.TaskGroup() as tasks:
            ask = lambda number: others.ask(f"arrived-{number}", SHORT, stream=number % 2 == 0)  # noqa: E731
            tasks.create_task(arrivals(rate_per_s, ask, exited.done))
            await _until(lambda: sum(request.is_over for request in others.requests) >= rate_per_s * before_s)
            for number in range(num_streams):
                tasks.create_task(clients.ask(f"stream-{number}", LONG, stream=True))
            await _until(lambda: sum(request.is_begun for request in clients.requests) == num_streams)
            gateway.send(signal.SIGTERM)
            began_s = time.monotonic()
            await gateway.until_unready()
            unready_s = time.monotonic() - began_s
        code = await exited
        ended_s = time.monotonic()
        rows = Counter((name, outcome) for name, outcome, _ in gateway.rows())
        return Drained(clients.requests, others.requests, rows, code, began_s, unready_s, ended_s - began_s)


async def _until(is_so: Any, within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not is_so():  # noqa: ASYNC110 - what it looks at tells nobody
            await asyncio.sleep(0.005)


@dataclass
class Died:
    """What the death of an engine came to: how long after it each stream ended, and `/ready` said so."""

    streams: list[Request]
    after_s: list[float]
    unready_s: float
    exit_code: int
    exited_s: float


async def kill_engine(gateway: Served, num_streams: int, num_tokens: int) -> Died:
    """`kill -9` of the engine's process of a gateway with real vLLM, while so many streams of so many tokens run."""
    clients = Clients(gateway.port, KEY)
    exited = asyncio.ensure_future(gateway.process.wait())
    died_s = unready_s = 0.0

    async def kill() -> None:
        nonlocal died_s, unready_s
        await _until(lambda: sum(request.is_begun for request in clients.requests) == num_streams)
        for pid in engine_pids(gateway.process.pid):
            os.kill(pid, signal.SIGKILL)
        died_s = time.monotonic()
        await gateway.until_unready()
        unready_s = time.monotonic() - died_s

    async with asyncio.TaskGroup() as tasks:
        for number in range(num_streams):
            options = {"max_tokens": num_tokens, "ignore_eos": True}
            tasks.create_task(clients.ask(f"stream-{number}", f"{number}: {LONG}", stream=True, **options))
        tasks.create_task(kill())
    code = await exited
    after_s = sorted(request.ended_s - died_s for request in clients.requests)
    return Died(clients.requests, after_s, unready_s, code, time.monotonic() - died_s)


def engine_pids(parent: int) -> list[int]:
    """vLLM's engine processes below the gateway's."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                status = (folder / "stat").read_text(encoding="latin-1")
            except OSError:  # it has ended
                continue
            name, rest = status[status.index("(") + 1 : status.rindex(")")], status[status.rindex(")") + 2 :].split()
            if int(rest[1]) == parent and name.startswith("VLLM"):
                found.append(int(folder.name))
    return found


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=float, default=50, help="requests a second that arrive meanwhile")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--model", type=Path, help="a checkpoint for real vLLM, whose engine is killed")
    wanted = parser.parse_args()
    seconds = []
    for _ in range(wanted.starts):
        with tempfile.TemporaryDirectory(prefix="k3gw-bench-") as name:
            for _ in ("a new store", "the same store"):
                async with served(Path(name), ["--engine", "scripted"]) as gateway:
                    seconds.append(round(gateway.started_s, 2))
    print(f"start to ready: new store {sorted(seconds[::2])} s, known store {sorted(seconds[1::2])} s")
    with tempfile.TemporaryDirectory(prefix="k3gw-bench-") as name:
        done = await drain(Path(name), num_streams=wanted.streams, rate_per_s=wanted.rate)
        print(f"drain: /ready 503 after {1000 * done.unready_s:.0f} ms, exit {done.exit_code} after {done.took_s:.2f} s")
        print(f"  {wanted.streams} streams: {dict(fates(done.streams))}; arrived: {dict(fates(done.arrived))}")
        print(f"  {len(done.answered)} answered, {done.num_rows_lost} without their row in the ledger")
    if wanted.model is not None:
        with tempfile.TemporaryDirectory(prefix="k3gw-bench-") as name:
            async with served(Path(name), ["--profile", "cpu-demo", "--model", str(wanted.model)]) as gateway:
                died = await kill_engine(gateway, min(wanted.streams, 32), 2000)
                print(
                    f"death: /ready 503 after {1000 * died.unready_s:.0f} ms, exit {died.exit_code} after {died.exited_s:.2f} s"
                )
                print(f"  {len(died.streams)} streams: {dict(fates(died.streams))}, the last after {died.after_s[-1]:.2f} s")


def main() -> None:
    """Run and print."""
    end_on_sigterm()
    asyncio.run(_main())


if __name__ == "__main__":
    main()
