"""The outermost layer: request id, rendering of errors, one log line a request, and a count of those that came to no generation.

Role: step 1 of a request. Invariant: every response has an `x-request-id`; no exception leaves the application; the log never
has a key, a prompt or an answer.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.clock import Clock
from server.errors import GatewayError, InternalError
from server.middleware.errors import error_response
from server.middleware.request_log import RequestLog
from server.record import GenerationRecord
from server.tracing.tracer import Tracer

_SANE_ID = re.compile(rb"[A-Za-z0-9._\-]{1,64}")
_PROBES = frozenset({"/health", "/ready"})
_APIS = {"/v1/chat/completions": "chat"}


class EdgeMiddleware:
    """Gives each request its id, and each failure its response.

    What is in the state's `headers` (name -> value) when a response starts goes out with it, whatever the response is.
    `on_refused`: called with what is known of a request that ends without a generation; "" for the unknown. `tracer`: traces
    the requests of the APIs.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        clock: Clock,
        on_refused: Callable[[GenerationRecord], None],
        tracer: Tracer | None = None,
    ) -> None:
        self._app = app
        self._clock = clock
        self._on_refused = on_refused
        self._tracer = tracer
        self._log = RequestLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["arrived_s"] = self._clock.monotonic_s()
        state["log"] = {}
        state["headers"] = {}
        state["send"] = send
        tracer = self._tracer if scope["path"] in _APIS else None
        trace = state["trace"] = None if tracer is None else tracer.begin(scope["headers"], state["arrived_s"])
        header = (b"x-request-id", request_id.encode())
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] != "http.response.start":
                await send(message)
                return
            headers = message["headers"] = [*message.get("headers", ())]
            headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in state["headers"].items()]
            headers.append(header)
            await send(message)  # may wait, and be given up: then nothing was sent
            status = message["status"]
            state["headers"].clear()
            if trace is not None:
                trace.opened()

        try:
            await self._app(scope, receive, send_with_id)
        except GatewayError as error:
            state["error"] = error
            if not status:
                await error_response(error)(scope, receive, send_with_id)
        except ClientDisconnect:
            state["log"]["outcome"] = "cancelled"
        except asyncio.CancelledError:  # the server gives up what has not ended in time when it stops
            state["log"]["outcome"] = "cancelled"
            raise
        except Exception as error:  # noqa: BLE001 - the last resort: rendered, and logged with its cause
            state["error"] = InternalError.of(error)
            if not status:
                await error_response(state["error"])(scope, receive, send_with_id)
        finally:
            self._end(scope, state, status)

    def _end(self, scope: Scope, state: dict[str, Any], status: int) -> None:
        if (body := state.get("body")) is not None:
            body.close()
        self._count(scope, state)
        ended_s = self._clock.monotonic_s()
        if self._tracer is not None and state["trace"] is not None:
            self._tracer.end(state["trace"], scope, status, ended_s)
        self._log.write(scope, status, ended_s - state["arrived_s"])
        state.clear()  # it leads back to the scope in several ways, and all would wait for the garbage collector

    def _count(self, scope: Scope, state: dict[str, Any]) -> None:
        """Generations count themselves, and probes are no requests of anybody."""
        error: GatewayError | None = state.get("error")
        outcome = state["log"].get("outcome") if error is None else error.outcome
        if outcome is None or "record" in state or scope["path"] in _PROBES:
            return
        now_s, arrived_s = self._clock.monotonic_s(), state["arrived_s"]
        record = GenerationRecord(
            request_id=state["request_id"],
            tenant=state["tenant"].name if "tenant" in state else "",
            key_id=state.get("key_id"),
            model=state.get("model", ""),
            api=_APIS.get(scope["path"], ""),
            arrived_s=arrived_s,
            arrived_unix_ms=self._clock.unix_ms() - round(1000 * (now_s - arrived_s)),
            ended_s=now_s,
            outcome=outcome,
            rejected_by=None if error is None else error.reason,
        )
        self._on_refused(record)


def _request_id(scope: Scope) -> str:
    """The client's `x-request-id` where it is sane and no key of ours, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE_ID.fullmatch(value) and not value.startswith(b"k3gw-"):
            return str(value.decode())
    return secrets.token_hex(16)
