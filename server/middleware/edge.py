"""The outermost layer: request id, rendering of errors, one log line a request, and a count of those that came to no generation.

Role: step 1 of a request. Invariant: every response has an `x-request-id`; no exception leaves the application; the log never
has a key, a prompt or an answer.
"""

from __future__ import annotations

import http
import logging
import re
import uuid
from collections.abc import Callable
from typing import Any

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.clock import Clock
from server.errors import GatewayError, InternalError
from server.middleware.errors import error_response
from server.record import GenerationRecord

log = structlog.get_logger(__name__)
_SANE_ID = re.compile(rb"[A-Za-z0-9._\-]{1,64}")
_PROBES = frozenset({"/health", "/ready"})
_QUIET = _PROBES | {"/metrics"}
_APIS = {"/v1/chat/completions": "chat"}


class EdgeMiddleware:
    """Gives each request its id, and each failure its response.

    `on_refused`: called with tenant, model, API and outcome of a request that ends without a generation; "" for the unknown.
    """

    def __init__(self, app: ASGIApp, *, clock: Clock, on_refused: Callable[[str, str, str, str], None]) -> None:
        self._app = app
        self._clock = clock
        self._on_refused = on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["arrived_s"] = self._clock.monotonic_s()
        state["log"] = {}
        state["send"] = send
        header = (b"x-request-id", request_id.encode())
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except GatewayError as error:
            state["error"] = error
            if not status:
                await error_response(error)(scope, receive, send_with_id)
        except ClientDisconnect:
            state["log"]["outcome"] = "cancelled"
        except Exception as error:  # noqa: BLE001 - the last resort: rendered, and logged with its cause
            state["error"] = InternalError.of(error)
            if not status:
                await error_response(state["error"])(scope, receive, send_with_id)
        finally:
            self._count(scope, state)
            self._log(scope, status, state)

    def _count(self, scope: Scope, state: dict[str, Any]) -> None:
        """Generations count themselves, and probes are no requests of anybody."""
        error: GatewayError | None = state.get("error")
        outcome = state["log"].get("outcome") if error is None else error.outcome
        if outcome is not None and "record" not in state and scope["path"] not in _PROBES:
            tenant: str = state["tenant"].name if "tenant" in state else ""
            self._on_refused(tenant, state.get("model", ""), _APIS.get(scope["path"], ""), outcome)

    def _log(self, scope: Scope, status: int, state: dict[str, Any]) -> None:
        """One line: who, what, how it ended. An error is part of it, with its cause where it has one."""
        level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
        record: GenerationRecord | None = state.get("record")
        fields = {**state["log"], **(record.log_fields() if record is not None else {})}
        error: GatewayError | None = state.get("error")
        if error is not None:
            level = error.log_level
            fields |= {"error": error.for_log[:500], "error_code": error.code}
            if error.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:  # what a client did wrong needs no traceback
                fields["exc_info"] = error.__cause__
        log.log(
            level,
            "request",
            request_id=state["request_id"],
            method=scope["method"],
            path=scope["path"][:200],
            status=status or None,
            seconds=round(self._clock.monotonic_s() - state["arrived_s"], 4),
            **fields,
        )


def _request_id(scope: Scope) -> str:
    """The client's `x-request-id` where it is sane, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE_ID.fullmatch(value):
            return str(value.decode())
    return uuid.uuid4().hex
