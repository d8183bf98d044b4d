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
from contextlib import aclosing
from typing import Any, Final

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors import GatewayError, InternalError
from server.streaming.answers import OpenAnswers
from server.streaming.rounds import Rounds

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
_HEADERS: Final = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"content-type", b"text/event-stream; charset=utf-8"),
)
_QUARTERS: Final = 4

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


def silence_rounds(keepalive_interval_s: float) -> Rounds:
    """What tells streams that they are silent, for a comment every so often."""
    return Rounds(keepalive_interval_s / _QUARTERS)


class EventStream:
    """An ASGI application that sends the frames of a generator as server-sent events, once.

    `open_frames` does what is to be done before there are any, and returns them: whole frames as bytes, several may be joined.
    They are closed whatever happens. What it raises is raised before a byte is sent, however long it takes. It is given the
    writer of the stream, for frames that need not wait until they are asked for.
    """

    __slots__ = ("_answers", "_headers", "_open_frames", "_rounds")

    def __init__(
        self,
        open_frames: Callable[[StreamWriter], Awaitable[Frames]],
        answers: OpenAnswers,
        *,
        rounds: Rounds,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        more = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()]
        self._headers = [*_HEADERS, *more]
        self._open_frames: Callable[[StreamWriter], Awaitable[Frames]] | None = open_frames
        self._answers = answers
        self._rounds = rounds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        writer = StreamWriter(send, self._headers, self._rounds, state)
        try:
            async with self._answers.open(state, receive), aclosing(await self._frames(writer)) as frames:
                await self._send_frames(frames, writer, state.get("send", send))
        except ClientDisconnect:
            raise
        except Exception as error:
            if not writer.opened:
                raise
            state["error"] = error if isinstance(error, GatewayError) else InternalError.of(error)
            await send({"type": "http.response.body", "body": error_frame(state["error"]), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _frames(self, writer: StreamWriter) -> Awaitable[Frames]:
        """Forgets what opens them: that has the whole request, which nobody needs while its answer is made."""
        assert self._open_frames is not None
        open_frames, self._open_frames = self._open_frames, None
        return open_frames(writer)

    async def _send_frames(self, frames: Frames, writer: StreamWriter, send: Send) -> None:
        """`send`: the server's own, past all layers, for what follows the head."""
        writer.begin()
        try:
            async for frame in frames:
                if not writer.opened:
                    await writer.open()
                if not writer.write(frame):
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
        finally:
            writer.end()


class StreamWriter:
    """Opens the response once, and fills silences with comments. `wrote`: whether anything went out lately."""

    __slots__ = (
        "_can_write", "_comment", "_headers", "_num_silent", "_opening", "_rounds", "_send", "_write", "opened", "wrote",
    )  # fmt: skip

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]], rounds: Rounds, state: dict[str, Any]) -> None:
        self._send = send
        self._write: Write = state.get("write", _never)
        self._can_write: CanWrite = state.get("can_write", _never)
        self._headers = headers
        self._rounds = rounds
        self._opening = asyncio.Lock()
        self._comment: asyncio.Task[None] | None = None
        self._num_silent = 0
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
                await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
                self.opened = True

    def begin(self) -> None:
        """From now on, a comment for every silent interval, a quarter of it late at most. Nothing per chunk."""
        self._num_silent, self.wrote = 0, False
        self._rounds.join(self)

    def end(self) -> None:
        """No comments any more."""
        self._rounds.leave(self)
        if self._comment is not None:
            self._comment.cancel()

    def look(self) -> None:
        """A quarter of the interval is over."""
        self._num_silent = 0 if self.wrote else self._num_silent + 1
        self.wrote = False
        if self._num_silent < _QUARTERS:
            return
        if self.is_ready() and self._write(COMMENT):
            self._num_silent = 0
        else:
            self._rounds.leave(self)
            self._comment = asyncio.ensure_future(self._send_comment())

    async def _send_comment(self) -> None:
        """Open the stream by a comment, or wait with it for the client."""
        await self.open()
        await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})
        self._comment = None
        self.begin()


class CollectedAnswer:
    """An ASGI application that waits for a whole answer and sends it as one JSON body, once."""

    __slots__ = ("_answers", "_collect", "_headers")

    def __init__(
        self, collect: Callable[[], Awaitable[bytes]], answers: OpenAnswers, *, headers: Mapping[str, str] | None = None
    ) -> None:
        self._headers = headers
        self._collect = collect
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._answers.open(scope["state"], receive):
            body = await self._collect()
            await Response(body, media_type="application/json", headers=self._headers)(scope, receive, send)
