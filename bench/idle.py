"""What an open stream costs that says nothing: resident memory for each of 1,000 and 5,000.

    python -m bench idle [--streams 1000,5000] [--json FILE]

Each stream gets its first token, and then its core is silent, as it is while a model waits for its tools or reads a long prompt.
Resident memory of the server's process before, with so many open, after all have left, and with as many open once more: what an
allocator keeps for them serves these, what leaks comes on top. Garbage is collected before each reading. The servers are measured
in turn, each new for each number. Besides the gateway with all its controls: vLLM's own server, and bare uvicorn, which has no
engine at all. Buffers of the kernel are in nobody's figure.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any, Final, cast

import uvloop

from bench import load
from bench.core_plan import Plan
from bench.line_up import BODIES, Frontend, LineUp, add_options
from bench.options import positives, some_of
from bench.processes import allow_many_files, end_on_sigterm
from bench.report import Report, add_json_option
from bench.served import KEY, MODEL

FRONTENDS: Final = ("gateway", "vllm", "uvicorn")
BATCH: Final = 50
SETTLE_S: Final = 60.0
STILL_S: Final = 3.0
STILL_BYTES: Final = 64 * 1024
COLUMNS: Final = {
    "streams": ",d", "frontend": "", "before MiB": ".1f", "with MiB": ".1f", "after MiB": ".1f", "again MiB": ".1f",
    "KiB a stream": ".1f", "kept KiB a stream": ".1f",
}  # fmt: skip


class _Stream(asyncio.Protocol):
    """Sends a request; `begun` once the first event is there."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.begun = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.begun.done() and b"data: " in data:
            self.begun.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.begun.done():
            self.begun.set_exception(RuntimeError(f"the server closed an idle stream: {error}"))


async def _settled(frontend: Frontend) -> int:
    """Resident memory once it does not change any more: what was closed here is still to be noticed there."""
    until_s, last, now = time.monotonic() + SETTLE_S, -STILL_BYTES, 0
    while abs(now - last) >= STILL_BYTES and time.monotonic() < until_s:
        await asyncio.sleep(STILL_S)
        frontend.process.collect_garbage()
        last, now = now, frontend.process.rss_bytes
    return now


async def _open(frontend: Frontend, num_streams: int) -> list[_Stream]:
    loop = asyncio.get_running_loop()
    request = load.request(0, 16, MODEL, KEY, BODIES["text"])  # few: the core keeps what it will say
    streams: list[_Stream] = []
    while len(streams) < num_streams:
        number = min(BATCH, num_streams - len(streams))
        pairs = [await loop.create_connection(lambda: _Stream(request), "127.0.0.1", frontend.port) for _ in range(number)]
        batch = [stream for _, stream in pairs]
        async with asyncio.timeout(120):
            await asyncio.gather(*(stream.begun for stream in batch))
        streams += batch
    return streams


async def _measure(line_up: LineUp, frontend: Frontend, num_streams: int) -> dict[str, Any]:
    """One server, which has had a few streams before: what it loads once is no stream's."""
    line_up.plan.set(Plan(most_tokens=1))
    for stream in await _open(frontend, BATCH):
        stream.transport.abort()
    before = await _settled(frontend)
    streams = await _open(frontend, num_streams)
    opened = await _settled(frontend)
    for stream in streams:
        stream.transport.abort()
    after = await _settled(frontend)
    streams = await _open(frontend, num_streams)
    again = await _settled(frontend)
    for stream in streams:
        stream.transport.abort()
    mib = 1024 * 1024
    return {
        "streams": num_streams,
        "frontend": frontend.name,
        "before MiB": before / mib,
        "with MiB": opened / mib,
        "after MiB": after / mib,
        "again MiB": again / mib,
        "KiB a stream": (opened - before) / 1024 / num_streams,
        "kept KiB a stream": (after - before) / 1024 / num_streams,
    }


def main(arguments: list[str] | None = None) -> None:
    """Run and print."""
    end_on_sigterm()
    parser = argparse.ArgumentParser("bench idle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--streams", type=positives, default="1000,5000")
    parser.add_argument("--only", type=some_of(FRONTENDS), default=",".join(FRONTENDS))
    add_json_option(parser)
    options = parser.parse_args(arguments)
    allow_many_files()
    report = Report("idle", {key: str(value) for key, value in vars(options).items()})
    report.head()
    rows = []
    for num_streams in map(int, options.streams.split(",")):
        with LineUp(options.only.split(","), options.model, options.cache) as line_up:
            line_up.start(report.note)
            rows += [uvloop.run(_measure(line_up, frontend, num_streams)) for frontend in line_up.frontends]
    report.table("memory", "Resident memory of the server, with idle streams open", COLUMNS, rows)
    report.write(options.json)


if __name__ == "__main__":
    main()
