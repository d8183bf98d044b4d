"""Server-sent events, and answers that are made while they are sent.

Role: step 8 of a request. The writer of a stream: it knows frames, first bytes, keep-alive comments and clients that leave, but
no API's wire shape.
Invariant: no byte is sent before the engine's first event, so an early error keeps its true status (unless the engine is
silent for a whole keep-alive interval: then the stream opens with a comment, because a proxy would cut it). After the first
byte an error is one `error` frame and nothing after it. A client that leaves cancels the work at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from server.errors import GatewayError, InternalError
from server.streaming.answers import OpenAnswers

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"

Frames = AsyncGenerator[bytes, None]
Write = Callable[[bytes], bool]
"""Sends a piece of the body at once. False where it has not, and ASGI's `send` has to."""
CanWrite = Callable[[], bool]
"""Whether `Write` would."""


def error_frame(error: GatewayError) -> bytes:
    """The frame that ends a stream which has already begun."""
    return b"data: " + orjson.dumps(error.body()) + b"\n\n"


def _never(*_: bytes) -> bool:
    """Under a server that offers nothing but ASGI."""
    return False


async def _watch(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect


@asynccontextmanager
async def cancelled_when_gone(receive: Receive) -> AsyncGenerator[asyncio.TaskGroup, None]:
    """Run the body until it ends or the client leaves; then the body is cancelled, and `ClientDisconnect` raised.

    Yields a task group for what the body does beside. Errors of the body come out as they are.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(_watch(receive))
            yield tasks
            watch.cancel()
    except BaseExceptionGroup as group:
        errors = sorted(group.exceptions, key=lambda error: isinstance(error, ClientDisconnect))
        raise errors[0] from errors[0].__cause__


class EventStream(Response):
    """Sends the frames of a generator as server-sent events.

    `open_frames` does what is to be done before there are any, and returns them: whole frames as bytes, several may be joined.
    They are closed whatever happens. What it raises is raised before a byte is sent, however long it takes. It is given the
    writer of the stream, for frames that need not wait until they are asked for.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        open_frames: Callable[[StreamWriter], Awaitable[Frames]],
        answers: OpenAnswers,
        *,
        keepalive_interval_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._open_frames = open_frames
        self._answers = answers
        self._interval_s = keepalive_interval_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        state = scope["state"]
        writer = StreamWriter(send, start, self._interval_s, state.get("write", _never), state.get("can_write", _never))
        try:
            async with self._answers.open(state), cancelled_when_gone(receive) as tasks:
                # A task of its own, and the server's own way to write what follows the head: what each chunk wakes and passes
                # through is then this and the generators, not the whole stack of the application.
                await tasks.create_task(self._send_frames(tasks, writer, state.get("send", send)))
        except ClientDisconnect:
            raise
        except Exception as error:
            if not writer.opened:
                raise
            failure = error if isinstance(error, GatewayError) else InternalError.of(error)
            scope["state"]["error"] = failure
            await send({"type": "http.response.body", "body": error_frame(failure), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_frames(self, tasks: asyncio.TaskGroup, writer: StreamWriter, send: Send) -> None:
        async with aclosing(await self._open_frames(writer)) as frames:
            comments = tasks.create_task(writer.fill_silence())
            async for frame in frames:
                if not writer.opened:
                    await writer.open()
                if not writer.write(frame):
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
        comments.cancel()


class StreamWriter:
    """Opens the response once, and fills silences with comments. `wrote`: whether anything went out lately."""

    __slots__ = ("_can_write", "_interval_s", "_opening", "_send", "_start", "_write", "opened", "wrote")

    def __init__(self, send: Send, start: Message, interval_s: float, write: Write, can_write: CanWrite) -> None:
        self._send = send
        self._write = write
        self._can_write = can_write
        self._start = start
        self._interval_s = interval_s
        self._opening = asyncio.Lock()
        self.opened = False
        self.wrote = False

    def is_ready(self) -> bool:
        """Whether `write` would send at once."""
        return self.opened and self._can_write()

    def write(self, frame: bytes) -> bool:
        """Send a frame at once, once the response is open. False where ASGI's `send` has to."""
        self.wrote = True
        return self._write(frame)

    async def open(self) -> None:
        """Send the response's head, if it has not been sent; whoever comes second waits for the first."""
        async with self._opening:
            if not self.opened:
                await self._send(self._start)
                self.opened = True

    async def fill_silence(self) -> None:
        """A comment for every silent interval, a quarter of it late at most. One timer a stream, nothing per chunk."""
        num_silent = 0
        while True:
            self.wrote = False
            await asyncio.sleep(self._interval_s / 4)
            num_silent = 0 if self.wrote else num_silent + 1
            if num_silent == 4:
                num_silent = 0
                await self.open()
                await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})


class CollectedAnswer(Response):
    """Waits for a whole answer and sends it as one JSON body. A client that leaves meanwhile cancels the work."""

    media_type = "application/json"

    def __init__(
        self, collect: Callable[[], Awaitable[bytes]], answers: OpenAnswers, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        self._extra_headers = dict(headers or {})
        self._collect = collect
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._answers.open(scope["state"]):
            async with cancelled_when_gone(receive):
                body = await self._collect()
            await Response(body, media_type=self.media_type, headers=self._extra_headers)(scope, receive, send)
