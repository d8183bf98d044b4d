"""A streaming client that costs little: raw sockets on kept connections, counts chunks, and what the server's process used.

Invariant: the time to the first token begins when the request is written. At a fixed pace each request comes at a time of its own
within a step: streams that start in step with the engine hide what they wait for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from bench.core_plan import CorePlan

_HERTZ = os.sysconf("SC_CLK_TCK")
CRLF = "\r\n"
_LAST = b"\r\n0\r\n\r\n"
NUM_FRAMES_WITHOUT_TOKENS = 3
"""Of a stream: the role, the end, and `[DONE]`."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cpu_s(pid: int) -> float:
    """CPU seconds that the process has used, in user and kernel mode, in ticks of the kernel."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _HERTZ


class Measurable(Protocol):
    """A server in a process of its own."""

    @property
    def cpu_s(self) -> float: ...


@dataclass(frozen=True)
class Load:
    """`num_requests` answers of `num_tokens` tokens, `num_streams` at a time; all of these start at once, or within `spread_s`.

    `body`: what is asked for beside. `pause_s`: before each request, a random part of it. `plan`: where a core in another
    process is told what has arrived. `tokens_per_chunk`: by which that is counted until an answer has ended.
    """

    num_streams: int
    num_tokens: int
    num_requests: int
    model: str
    key: str
    body: dict[str, Any] = field(default_factory=dict)
    pause_s: float = 0.0
    spread_s: float = 0.0
    plan: CorePlan | None = None
    tokens_per_chunk: int = 1

    def request(self, index: int) -> bytes:
        """What asks for answer `index`."""
        return request(index, self.num_tokens, self.model, self.key, self.body, keeps=True)


@dataclass
class Measured:
    """Of one run: `num_frames` are server-sent events of whatever kind."""

    num_frames: int = 0
    num_requests: int = 0
    num_tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    wall_s: float = 0.0

    @property
    def num_chunks(self) -> int:
        """Frames that have tokens in them."""
        return self.num_frames - NUM_FRAMES_WITHOUT_TOKENS * self.num_requests

    def figures(self) -> dict[str, float]:
        """What a table shows."""
        found = {
            "cpu_s_per_1000_tokens": self.cpu_s / self.num_tokens * 1000,
            "tokens_per_s": self.num_tokens / self.wall_s,
            "cpu_share": self.cpu_s / self.wall_s,
            "chunks_per_token": self.num_chunks / self.num_tokens,
        }
        if self.ttft_s:
            found |= {"ttft_p50_ms": 1000 * percentile(self.ttft_s, 50), "ttft_p99_ms": 1000 * percentile(self.ttft_s, 99)}
        return found


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which `part` percent of them are."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part / 100))]


class Connection(asyncio.Protocol):
    """One kept connection, one request at a time."""

    def __init__(self, measured: Measured, load: Load) -> None:
        self._measured = measured
        self._plan = load.plan
        self._per_chunk = load.tokens_per_chunk
        self._num_tokens = load.num_tokens
        self._done: asyncio.Future[None] | None = None
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    async def ask(self, request: bytes) -> None:
        """Send `request` and return when its answer is whole. Raises `RuntimeError` for one that is an error."""
        self._is_open, self._head, self._tail, self._num_counted, self._num_left = False, b"", b"", 0, -1
        self._started_s = time.perf_counter()
        self._is_first = True
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        await self._done
        self._measured.latency_s.append(time.perf_counter() - self._started_s)
        self._measured.num_requests += 1
        if self._plan is not None:
            self._plan.num_delivered += self._num_tokens - self._num_counted

    def data_received(self, data: bytes) -> None:
        if not self._is_open and not (data := self._read_head(data)):
            return
        if self._num_left >= 0:
            self._num_left -= len(data)
            if self._num_left <= 0:
                self._end()
            return
        if self._is_first:
            self._is_first = False
            self._measured.ttft_s.append(time.perf_counter() - self._started_s)
        joined = self._tail + data
        num_frames = joined.count(b"data: ") - self._tail.count(b"data: ")
        self._measured.num_frames += num_frames
        if self._plan is not None and num_frames:
            more = min(num_frames * self._per_chunk, self._num_tokens - self._num_counted)
            self._num_counted += more
            self._plan.num_delivered += more
        self._tail = joined[-6:]
        if joined.endswith(_LAST):
            self._end()

    def _read_head(self, data: bytes) -> bytes:
        """What follows the head in `data`; nothing while it is not whole."""
        self._head += data
        head, found, rest = self._head.partition(b"\r\n\r\n")
        if not found:
            return b""
        self._is_open = True
        if b" 200 " not in head[:20]:
            self._end(RuntimeError(f"the server refused: {self._head[:2000]!r}"))
            return b""
        head = head.lower()
        if (at := head.find(b"content-length: ")) >= 0:
            self._num_left = int(head[at + 16 :].partition(b"\r\n")[0])
        return rest

    def _end(self, error: Exception | None = None) -> None:
        if self._done is not None and not self._done.done():
            if error is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(RuntimeError(f"the server closed the connection: {error} {self._head[:300]!r}"))


async def connect(port: int, measured: Measured, load: Load) -> Connection:
    """A connection whose answers are counted in `measured`."""
    _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(measured, load), "127.0.0.1", port)
    return connection


async def measure(server: Measurable, port: int, load: Load) -> Measured:
    """Put `load` on a server."""
    measured = Measured()
    indexes = iter(range(load.num_requests))
    connections = [await connect(port, measured, load) for _ in range(min(load.num_streams, load.num_requests))]
    chance = random.Random(load.num_streams)

    async def work(at: int, connection: Connection) -> None:
        if load.spread_s:
            await asyncio.sleep(load.spread_s * at / len(connections))
        for index in indexes:
            if load.pause_s:
                await asyncio.sleep(load.pause_s * chance.random())
            await connection.ask(load.request(index))

    before_s, started_s = server.cpu_s, time.perf_counter()
    await asyncio.gather(*(work(at, connection) for at, connection in enumerate(connections)))
    measured.cpu_s, measured.wall_s = server.cpu_s - before_s, time.perf_counter() - started_s
    measured.num_tokens = load.num_requests * load.num_tokens
    for connection in connections:
        connection.transport.close()
    return measured


class _Pid:
    def __init__(self, pid: int) -> None:
        self._pid = pid

    @property
    def cpu_s(self) -> float:
        return cpu_s(self._pid)


async def run(port: int, pid: int, num_streams: int, num_tokens: int, model: str, key: str) -> dict[str, Any]:
    """`3 × num_streams` requests of `num_tokens` tokens, `num_streams` at a time."""
    num_requests = max(num_streams * 3, 16)
    measured = await measure(_Pid(pid), port, Load(num_streams, num_tokens, num_requests, model, key))
    return {
        "streams": num_streams,
        "chunks": measured.num_chunks,
        "chunks_per_token": round(measured.num_chunks / measured.num_tokens, 3),
        "cpu_s_per_1000_chunks": measured.cpu_s / measured.num_chunks * 1000,
        "chunks_per_s": round(measured.num_chunks / measured.wall_s),
        "ttft_p50_ms": round(1000 * percentile(measured.ttft_s, 50), 1),
    }


async def stream(port: int, request: bytes, measured: Measured) -> None:
    """Send a `request` that closes its connection, and count what comes in `measured`."""
    started_s = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head[:20]:
        raise RuntimeError(f"the server refused: {head!r} {await reader.read(2000)!r}")
    first_s = 0.0
    while data := await reader.read(65536):
        first_s = first_s or time.perf_counter() - started_s
        measured.num_frames += data.count(b"data: ")
    writer.close()
    measured.num_requests += 1
    measured.ttft_s.append(first_s)


def request(
    index: int, num_tokens: int, model: str, key: str, body: dict[str, Any] | None = None, *, keeps: bool = False
) -> bytes:
    """What asks for an answer of exactly `num_tokens`. `body`: more of it, or other; `keeps`: the connection stays open."""
    fields = {
        "model": model,
        "messages": [{"role": "user", "content": f"Tell me about number {index}."}],
        "max_tokens": num_tokens,
        "stream": True,
        "temperature": 0,
        **({"ignore_eos": True} if body is None else body),
    }
    data = json.dumps(fields)
    connection = "" if keeps else f"connection: close{CRLF}"
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\n{connection}content-length: {len(data)}\r\n\r\n{data}"
    ).encode()
