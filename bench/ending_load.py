"""Clients that notice everything: raw connections, one request each, and what became of it down to how its connection ended.

Role: what `bench.drain` and the tests of drains ask with. An answer is `whole`, an error by its code, or one of `LOST`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

WHOLE = "whole"
UNREACHABLE = "unreachable"
"""Nobody listens."""
LOST = "cut off"
"""The connection ended, and the answer had not; or before there was one."""


@dataclass
class Request:
    """One request, its answer, and when what happened. Times are the monotonic clock's.

    `fate`: `WHOLE`, `UNREACHABLE`, `LOST`, or the code of the error that came, as a body or as a stream's last frame. `is_begun`:
    whether something of an answer came. `closes`: whether the answer said that its connection ends with it.
    """

    name: str
    text: str
    is_streamed: bool
    sent_s: float = 0.0
    begun_s: float = 0.0
    ended_s: float = 0.0
    status: int = 0
    fate: str = ""
    closes: bool = False
    retry_after_s: int | None = None
    tokens: int = 0

    @property
    def is_begun(self) -> bool:
        return self.begun_s > 0

    @property
    def is_over(self) -> bool:
        return self.ended_s > 0


@dataclass
class Clients:
    """All that is asked of one address. `fields`: of every body."""

    port: int
    key: str
    host: str = "127.0.0.1"
    keeps_alive: bool = True
    fields: dict[str, Any] = field(default_factory=lambda: {"model": "kimi-k3", "thinking": {"type": "disabled"}})
    requests: list[Request] = field(default_factory=list)

    async def ask(self, name: str, text: str, *, stream: bool, **fields: Any) -> Request:
        """Ask, and stay until the end, whatever it is."""
        request = Request(name, text, stream)
        self.requests.append(request)
        request.sent_s = time.monotonic()
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
        except OSError:
            request.fate = UNREACHABLE
        else:
            try:
                writer.write(self._message(request, fields))
                await self._read(request, reader)
            except (OSError, EOFError, ValueError):
                request.fate = LOST
            finally:
                writer.close()
        request.ended_s = time.monotonic()
        return request

    def _message(self, request: Request, fields: dict[str, Any]) -> bytes:
        messages = [{"role": "user", "content": request.text}]
        body = json.dumps({**self.fields, **fields, "messages": messages, "stream": request.is_streamed}).encode()
        lines = ["POST /v1/chat/completions HTTP/1.1", f"host: {self.host}", f"authorization: Bearer {self.key}"]
        lines += [f"x-request-id: {request.name}", f"content-length: {len(body)}", "content-type: application/json"]
        if not self.keeps_alive:
            lines.append("connection: close")
        return "\r\n".join([*lines, "", ""]).encode() + body

    async def _read(self, request: Request, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        request.begun_s = time.monotonic()
        request.status = int(head[9:12])
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        request.closes = headers.get("connection") == "close"
        request.retry_after_s = int(headers["retry-after"]) if "retry-after" in headers else None
        if headers.get("transfer-encoding") == "chunked":
            request.fate = await self._read_stream(request, reader)
        else:
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            request.fate = body["error"]["code"] if "error" in body else WHOLE
            request.tokens = body.get("usage", {}).get("completion_tokens", 0)

    async def _read_stream(self, request: Request, reader: asyncio.StreamReader) -> str:
        """The last frame is what counts."""
        last = b""
        while size := int(await reader.readline(), 16):
            piece = (await reader.readexactly(size + 2))[:-2]
            last = (last + piece)[-4096:]
        await reader.readexactly(2)
        frame = last.rstrip(b"\n").rpartition(b"\n\n")[2].removeprefix(b"data: ")
        if frame == b"[DONE]":
            return WHOLE
        error = json.loads(frame).get("error")
        return LOST if error is None else str(error["code"])


def fates(requests: Iterable[Request]) -> Counter[str]:
    """How many of them ended how."""
    return Counter(request.fate for request in requests)


async def arrivals(rate_per_s: float, ask: Callable[[int], Any], until: Callable[[], bool]) -> None:
    """Requests at fixed moments, whatever becomes of those before; returns once the last has ended. `ask` gets their numbers."""
    begun_s = time.monotonic()
    number = 0
    async with asyncio.TaskGroup() as tasks:
        while not until():
            tasks.create_task(ask(number))
            number += 1
            await asyncio.sleep(max(0.0, begun_s + number / rate_per_s - time.monotonic()))
