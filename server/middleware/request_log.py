"""One log line a request: who, what, how it ended.

Invariant: no line has a key, a prompt or an answer, at any level, also where a client has put its key into the URL and where an
error repeats what it sent; the path and a client's own request id are all that is in its words. A flood of wrong keys writes a
few lines a second, and one that says how many are missing.
"""

from __future__ import annotations

import asyncio
import http
import logging
import re
from typing import Any, Final

import structlog
from starlette.types import Scope

from server.errors import GatewayError
from server.log_text import cause_text, without_values
from server.record import GenerationRecord
from server.tracing.trace import RequestTrace

log = structlog.get_logger(__name__)
MAX_WRONG_KEYS_A_SECOND: Final = 5
SAME_CAUSE_S: Final = 10.0
_QUIET: Final = frozenset({"/health", "/ready", "/metrics"})
_FILES: Final = "/dashboard/"  # the page's own, and its figures: each look at it would be a dozen lines
_KEY: Final = re.compile(r"\b(?:k3gw|sk)-[A-Za-z0-9_\-]{6,}")
_LONG_PART: Final = re.compile(r"[^/\s]{25,}")


class RequestLog:
    """The log of one gateway's requests."""

    def __init__(self) -> None:
        self._num_wrong_keys = 0
        self._last_cause: tuple[str, str, float] | None = None

    def write(self, scope: Scope, status: int, seconds: float) -> None:
        """The line of a request that has ended. An error is part of it, with its cause where it has one."""
        state: dict[str, Any] = scope["state"]
        level = logging.DEBUG if scope["path"] in _QUIET or scope["path"].startswith(_FILES) else logging.INFO
        record: GenerationRecord | None = state.get("record")
        known = {"model": state["model"]} if "model" in state else {}
        fields = {**state["log"], **known, **(record.log_fields() if record is not None else {})}
        trace: RequestTrace | None = state.get("trace")
        if trace is not None and (trace.is_sampled or trace.parent is not None):
            fields["trace_id"] = trace.hex_id
        error: GatewayError | None = state.get("error")
        path = scope["path"][:200]
        if error is not None:
            if state.get("is_nobody") and self._is_one_too_many():
                return
            level = error.log_level
            path = without_keys(path)
            fields.setdefault("outcome", error.outcome)
            fields |= {"error": _KEY.sub("…", without_values(error.for_log)), "error_code": error.code}
            if error.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR and error.__cause__ is not None:
                fields |= self._cause(error.__cause__, state["request_id"])  # what a client did wrong needs no traceback
        log.log(
            level,
            "request",
            request_id=state["request_id"],
            method=scope["method"],
            path=path,
            status=status or None,
            seconds=round(seconds, 4),
            **fields,
        )

    def _cause(self, cause: BaseException, request_id: str) -> dict[str, str]:
        """What an error came from, once: an engine that dies ends hundreds of requests by the same cause."""
        text, now_s = cause_text(cause), asyncio.get_running_loop().time()
        if self._last_cause is not None:
            last_text, first_request_id, until_s = self._last_cause
            if text == last_text and now_s < until_s:
                return {"same_cause_as": first_request_id}
        self._last_cause = (text, request_id, now_s + SAME_CAUSE_S)
        return {"exception": text}

    def _is_one_too_many(self) -> bool:
        if self._num_wrong_keys == 0:
            asyncio.get_running_loop().call_later(1, self._end_second)
        self._num_wrong_keys += 1
        return self._num_wrong_keys > MAX_WRONG_KEYS_A_SECOND

    def _end_second(self) -> None:
        if (num_left_out := self._num_wrong_keys - MAX_WRONG_KEYS_A_SECOND) > 0:
            log.warning("wrong_keys_not_logged", num_requests=num_left_out)
        self._num_wrong_keys = 0


def without_keys(path: str) -> str:
    """`path` without the parts that may be keys: those that look like one, and those longer than any of our paths has."""
    return _LONG_PART.sub("…", _KEY.sub("…", path))
