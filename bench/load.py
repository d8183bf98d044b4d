"""A streaming client that costs little: raw sockets, counts chunks, measures the server's CPU time from outside."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

_HERTZ = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cpu_s(pid: int) -> float:
    """CPU seconds that the process has used, in user and kernel mode."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _HERTZ


@dataclass
class Measured:
    """Of one run: chunks are server-sent events with tokens (the role, the end and usage are not counted)."""

    num_chunks: int = 0
    ttft_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    wall_s: float = 0.0

    def figures(self, num_streams: int, num_tokens: int) -> dict[str, Any]:
        """What a table shows."""
        return {
            "streams": num_streams,
            "chunks": self.num_chunks,
            "chunks_per_token": round(self.num_chunks / num_tokens, 3),
            "cpu_s_per_1000_chunks": self.cpu_s / self.num_chunks * 1000,
            "chunks_per_s": round(self.num_chunks / self.wall_s),
            "ttft_p50_ms": round(median(self.ttft_s) * 1000, 1),
        }


async def run(port: int, pid: int, num_streams: int, num_tokens: int, model: str, key: str) -> dict[str, Any]:
    """`3 × num_streams` requests of `num_tokens` tokens, `num_streams` at a time."""
    num_requests = max(num_streams * 3, 16)
    measured = Measured()
    gate = asyncio.Semaphore(num_streams)

    async def one(index: int) -> None:
        async with gate:
            await stream(port, request(index, num_tokens, model, key), measured)

    before_s, started_s = cpu_s(pid), time.perf_counter()
    await asyncio.gather(*(one(index) for index in range(num_requests)))
    measured.cpu_s, measured.wall_s = cpu_s(pid) - before_s, time.perf_counter() - started_s
    return measured.figures(num_streams, num_requests * num_tokens)


def request(index: int, num_tokens: int, model: str, key: str) -> bytes:
    """What asks for an answer of exactly `num_tokens`."""
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": f"Tell me about number {index}."}],
            "max_tokens": num_tokens,
            "stream": True,
            "temperature": 0,
            "ignore_eos": True,
        }
    )
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def stream(port: int, request: bytes, measured: Measured) -> None:
    """Send `request`, and count what comes in `measured`."""
    started_s = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head[:20]:
        raise RuntimeError(f"the server refused: {head!r} {await reader.read(2000)!r}")
    num_frames, first_s = 0, 0.0
    while data := await reader.read(65536):
        first_s = first_s or time.perf_counter() - started_s
        num_frames += data.count(b"data: ")
    writer.close()
    measured.num_chunks += num_frames - 3
    measured.ttft_s.append(first_s)
