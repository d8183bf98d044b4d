"""uvicorn's HTTP/1.1 protocol with bounds on what a client may do before, beside and after its request.

Role: below the application, where nobody is known yet. Invariants: the head of a request is bounded before it is complete;
reading goes on while an answer is under way, so that a client that leaves is noticed; a client that stops reading loses its
connection, and its request with it; large bodies, however many come at once, take turns with all else that the event loop does.
While the gateway drains, no connection outlives its answer.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from server.errors import GatewayError, HeadersTooLargeError, InvalidRequestError
from server.flag import Flag
from server.gateway import Gateway
from server.http_versions import AnyHttpProtocol
from server.last_words import AnswerTransport
from server.middleware.errors import error_response
from server.pace import ClientPace
from server.record import GenerationRecord
from server.timed_flow import TimedFlow

MAX_HEAD_BYTES = 64 * 1024
LINGER_S = 1.0
LAST_CALL_S = 0.2
QUICK_BYTES = 16 * 1024
"""Received at once, these wait for no turn."""

log = structlog.get_logger(__name__)


class HttpProtocol(AnyHttpProtocol):
    """One connection. In the state of each request are the `pace` of its client, as `client`, `write_piece` as `write`,
    `can_write`, and `watch`.

    `_num_head_bytes`: URL, headers and trailers of the message so far. `_num_idle_bytes`: received since the parser last had
    something to hand on, which is what it keeps of a line that does not end. `_unread`: received, and waiting for a turn of the
    loop; nothing more is received meanwhile. `_deaf`: whatever else comes is dropped.
    """

    __slots__ = (
        "_deaf", "_gateway", "_gone", "_num_head_bytes", "_num_idle_bytes", "_num_unread_bytes", "_patience", "_unread",
        "_write_timeout_s",
    )  # fmt: skip

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        app: Any = config.app
        self._gateway: Gateway = app.state.gateway
        self._write_timeout_s = self._gateway.settings.http.write_timeout_s
        self._num_head_bytes = 0
        self._num_idle_bytes = 0
        self._unread: list[bytes] = []
        self._deaf = False
        self._num_unread_bytes = 0
        self._patience: asyncio.TimerHandle | None = None
        self._gone: Callable[[], None] | None = None
        self.pipeline = ()  # type: ignore[assignment]  # none waits there: `on_message_begin`

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow: TimedFlow = TimedFlow(transport, self._gateway.clock)

    def data_received(self, data: bytes) -> None:
        if len(data) <= QUICK_BYTES and not self._unread:
            self._read(data)
            return
        self._unread.append(data)
        if len(self._unread) == 1 and not self._gateway.receiving.do(len(data), self._read_on):
            self._unset_keepalive_if_required()
            self.transport.pause_reading()

    def _read_on(self) -> None:
        """Read what has waited."""
        unread, self._unread = self._unread, []
        for data in unread:
            self._read(data)
        if not (self.transport.is_closing() or self.flow.read_paused):
            self.transport.resume_reading()

    def _read(self, data: bytes) -> None:
        if self._deaf:
            return
        self._num_idle_bytes += len(data)
        super().data_received(data)
        if self._num_idle_bytes > MAX_HEAD_BYTES and not self._deaf:
            self._refuse(_too_large())

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # Sent before the answer to its predecessor. uvicorn would stop reading until that is whole, and not notice a client
            # that leaves. HTTP allows to close instead; clients send such a request again.
            self.cycle.keep_alive = False
            self._deaf = True
        else:
            self._num_head_bytes = 0
            super().on_message_begin()
            self.flow.pace = ClientPace()
            self.scope["state"]["client"] = self.flow.pace
            self.scope["state"]["write"] = self.write_piece
            self.scope["state"]["can_write"] = self.can_write
            self.scope["state"]["watch"] = self.watch

    def on_url(self, url: bytes) -> None:
        if not self._deaf:
            super().on_url(url)
            self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._deaf:
            self._count(len(name) + len(value) + 4)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._num_idle_bytes = 0
        if not (self._deaf or self.is_offer):
            super().on_headers_complete()
            if self.cycle is not None:
                self.cycle.message_event = Flag()  # type: ignore[assignment]  # as good as uvicorn's, which nobody has yet
                self.cycle.transport = AnswerTransport(self.transport, self._end)  # type: ignore[assignment]
            if self._gateway.draining and self.cycle is not None:
                self.cycle.keep_alive = False  # the answer says so: a client's next request goes elsewhere

    def on_body(self, body: bytes) -> None:
        self._num_idle_bytes = 0
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_idle_bytes = 0
        if not (self._deaf or self.is_offer):
            self.flow.pace.received_s = self._gateway.clock.monotonic_s()
            super().on_message_complete()

    def write_piece(self, data: bytes) -> bool:
        """Send a piece of the answer under way, as `send` would, and at once: a token passes through no coroutine for it.

        False, and nothing is sent, where that is for `send` to do. `data` is not empty.
        """
        if not self.can_write():
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def can_write(self) -> bool:
        """Whether the answer is a stream that has begun, and its client neither has left nor is to be waited for."""
        cycle = self.cycle
        if cycle is None or self.flow.write_paused or cycle.disconnected or cycle.response_complete:
            return False
        return bool(cycle.response_started and cycle.chunked_encoding)

    def watch(self, gone: Callable[[], None] | None) -> None:
        """Call `gone` when the client of the answer under way leaves; None: nothing any more. The request has been read."""
        self._gone = gone
        if gone is None:
            return
        if self.cycle is None or self.cycle.disconnected:
            self.loop.call_soon(self._tell_gone)
        else:
            self.flow.resume_reading()  # else it would not be noticed

    def _tell_gone(self) -> None:
        gone, self._gone = self._gone, None
        if gone is not None:
            gone()

    def send_400_response(self, msg: str) -> None:
        if not self._deaf:
            self._refuse(_too_large() if self._num_head_bytes > MAX_HEAD_BYTES else InvalidRequestError("this is not HTTP/1.1"))

    def turn_away(self) -> None:
        """Close this connection as soon as it is idle. A first request, and one that has begun to come, is answered before."""
        if not self._awaits_request:
            self.shutdown()

    def shutdown(self) -> None:
        """As in uvicorn. Who has connected and not been heard yet is about to ask, and gets a moment to be told."""
        if self._awaits_request:
            self.loop.call_later(LAST_CALL_S, super().shutdown)
        else:
            super().shutdown()

    @property
    def _awaits_request(self) -> bool:
        return self.cycle is None or self._num_idle_bytes > 0 or bool(self._unread)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._num_unread_bytes = self.transport.get_write_buffer_size()
        self._patience = self.loop.call_later(self._write_timeout_s, self._lose_patience)

    def resume_writing(self) -> None:
        self._stop_waiting()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._unread.clear()
        super().connection_lost(exc)
        # What is still at work has both of its own; they have this, and all would wait for the garbage collector.
        self.cycle = self.scope = None  # type: ignore[assignment]
        self._tell_gone()

    def _count(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > MAX_HEAD_BYTES:
            raise _too_large()  # stops the parser; `send_400_response` is called for it

    def _lose_patience(self) -> None:
        """Drop a client that has read nothing for the whole timeout."""
        num_unread_bytes = self.transport.get_write_buffer_size()
        if num_unread_bytes < self._num_unread_bytes:
            self._num_unread_bytes = num_unread_bytes
            self._patience = self.loop.call_later(self._write_timeout_s, self._lose_patience)
        else:
            log.info("reader_stuck", seconds=self._write_timeout_s)
            self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _refuse(self, error: GatewayError) -> None:
        """Answer what is no request, where no answer has begun, and close."""
        self._deaf = True
        if self.cycle is not None and not self.cycle.response_complete:  # its body is broken
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._tell_gone()
            if self.cycle.response_started:
                self.transport.close()
                return
        response = error_response(error)
        request_id = uuid.uuid4().hex
        headers = [*response.raw_headers, (b"x-request-id", request_id.encode()), (b"connection", b"close")]
        head = b"".join(b"%b: %b\r\n" % header for header in headers)
        self.transport.write(STATUS_LINE[error.status] + head + b"\r\n" + bytes(response.body))
        self._gateway.refused(GenerationRecord(request_id, "", "", arrived_s=0.0, api="", outcome=error.outcome))
        log.info("refused", request_id=request_id, status=error.status, error=error.message)
        self._linger()

    def _end(self) -> None:
        """The answer is written, and nothing comes after it."""
        if self.cycle.more_body:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Closing at once, with more on its way to us, would reset the connection and take the answer along."""
        self._deaf = True
        self.flow.resume_reading()
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)


def _too_large() -> HeadersTooLargeError:
    return HeadersTooLargeError(f"URL and headers have more than {MAX_HEAD_BYTES} bytes; send less")
