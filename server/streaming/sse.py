"""Server-sent events, and answers that are made while they are sent.

Role: step 8 of a request. The writer of a stream: it knows frames, first bytes, keep-alive comments and clients that leave, but
no API's wire shape.
Invariant: no byte is sent before the engine's first event, so an early error keeps its true status (unless the engine is
silent for a whole keep-alive interval: then the stream opens with a comment, because a proxy would cut it). After the first
byte an error is one `error` frame and nothing after it. A client that leaves cancels the work at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors import GatewayError, InternalError

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"

Headers = Mapping[str, str]


def error_frame(error: GatewayError) -> bytes:
    """The frame that ends a stream which has already begun."""
    return b"data: " + orjson.dumps(error.body()) + b"\n\n"


class ClientGoneError(Exception):
    """The client closed its connection. Not an error: the work is dropped quietly."""


async def _watch(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGoneError


@asynccontextmanager
async def cancelled_when_gone(receive: Receive) -> AsyncGenerator[None, None]:
    """Run the body until it ends or the client leaves; then the body is cancelled. Errors of the body come out as they are."""
    try:
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(_watch(receive))
            yield
            watch.cancel()
    except BaseExceptionGroup as group:
        if errors := [error for error in group.exceptions if not isinstance(error, ClientGoneError)]:
            raise errors[0] from errors[0].__cause__


class EventStream(Response):
    """Sends the frames of a generator as server-sent events.

    `frames`: whole frames as bytes, several may be joined; it is closed whatever happens.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        keepalive_interval_s: float,
        headers: Headers | None = None,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._frames = frames
        self._interval_s = keepalive_interval_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with cancelled_when_gone(receive), aclosing(self._frames):
            writer = _Writer(send, self.status_code, self.raw_headers, self._interval_s)
            try:
                async with writer:
                    async for frame in self._frames:
                        await writer.write(frame)
            except Exception as error:
                if not writer.opened:
                    raise
                failure = error if isinstance(error, GatewayError) else InternalError.of(error)
                await writer.write(error_frame(failure))
                scope["state"]["error"] = failure
            await writer.close()


class _Writer:
    """Opens the response with its first bytes and fills silences with comments."""

    __slots__ = ("_handle", "_headers", "_interval_s", "_send", "_status", "_task", "_wrote", "opened")

    def __init__(self, send: Send, status: int, headers: list[tuple[bytes, bytes]], interval_s: float) -> None:
        self._send = send
        self._status = status
        self._headers = headers
        self._interval_s = interval_s
        self._wrote = False
        self._task: asyncio.Task[None] | None = None
        self._handle: asyncio.TimerHandle | None = None
        self.opened = False

    async def __aenter__(self) -> _Writer:
        self._arm()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def _arm(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(self._interval_s, self._tick)

    def _tick(self) -> None:
        """Once an interval: a comment if nothing was written in it. One timer a stream, nothing per chunk."""
        if not self._wrote and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self.write(COMMENT))
        self._wrote = False
        self._arm()

    async def write(self, data: bytes) -> None:
        self._wrote = True
        if not self.opened:
            self.opened = True
            await self._send({"type": "http.response.start", "status": self._status, "headers": self._headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def close(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class CollectedAnswer(Response):
    """Waits for a whole answer and sends it as one JSON body. A client that leaves meanwhile cancels the work."""

    media_type = "application/json"

    def __init__(self, collect: Callable[[], Any], *, headers: Headers | None = None) -> None:
        super().__init__(headers=dict(headers or {}))
        self._collect = collect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with cancelled_when_gone(receive):
            body = await self._collect()
            response = Response(body, media_type=self.media_type)
            response.raw_headers += [
                header for header in self.raw_headers if header[0] not in (b"content-length", b"content-type")
            ]
            await response(scope, receive, send)
