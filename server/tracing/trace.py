"""The trace of one request while it runs: what was done for it, and when.

Role: beside every step of a request, where tracing is on. It only notes moments; spans are made of them once the request has
ended (`ending.py`), whatever has become of it.
Invariant: noting costs a few objects a request, and never fails, waits or changes what it watches.
Must not: know OpenTelemetry, or keep what a client or a model said, unless `content` is there to keep it.
"""

from __future__ import annotations

import asyncio
import http
import secrets
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from server.clock import Clock
from server.errors import GatewayError
from server.tracing.content import Content

T = TypeVar("T")
AttributeValue = str | bool | int | float | list[str]
_SAMPLED: Final = 1


@dataclass(slots=True, frozen=True)
class Parent:
    """The span of a client's that a request belongs to. `state`: its `tracestate` header, "" for none."""

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str = ""


@dataclass(slots=True)
class Span:
    """A part of a request. Times are of the monotonic clock; `ended_s` is None while it lasts.

    `error_type`: what it ended with, where that was an error; `is_error`: and one of ours or the engine's. `was_cut`: it was
    ended from outside. `is_call`: it is the engine that works; then `first_token_s` is when its first tokens came.
    """

    name: str
    span_id: int
    started_s: float
    ended_s: float | None = None
    error_type: str | None = None
    is_error: bool = False
    was_cut: bool = False
    first_token_s: float | None = None
    is_call: bool = False
    attributes: dict[str, AttributeValue] = field(default_factory=dict)

    def fail(self, error: BaseException) -> None:
        """Note what ends it."""
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.was_cut = True
        else:
            self.error_type, self.is_error = error_type(error), is_error(error)


class RequestTrace:
    """One request's. `is_sampled` is None until it is known whose request it is.

    `started_s` is on the monotonic clock, `started_ns` the same moment on the calendar. `opened_s`: when the response began.
    `attributes`: of the request's own span, whose id is `span_id`. `content`: keeps what was said, where that is wanted.
    """

    __slots__ = (
        "_clock", "attributes", "content", "is_sampled", "opened_s", "parent", "span_id", "spans", "started_ns", "started_s",
        "trace_id",
    )  # fmt: skip

    def __init__(self, clock: Clock, started_s: float, parent: Parent | None = None, content: Content | None = None) -> None:
        self._clock = clock
        self.parent = parent
        self.trace_id = parent.trace_id if parent else new_id(128)
        self.span_id = new_id(64)
        self.started_s = started_s
        self.started_ns = 1_000_000 * clock.unix_ms() - round(1e9 * (clock.monotonic_s() - started_s))
        self.opened_s: float | None = None
        self.is_sampled: bool | None = None
        self.content = content
        self.attributes: dict[str, AttributeValue] = {}
        self.spans: list[Span] = []

    @property
    def hex_id(self) -> str:
        """The trace's id as people and headers write it."""
        return f"{self.trace_id:032x}"

    def now_s(self) -> float:
        """The monotonic clock."""
        return self._clock.monotonic_s()

    def opened(self) -> None:
        """The response begins."""
        self.opened_s = self._clock.monotonic_s()

    def begin(self, name: str, attributes: Mapping[str, AttributeValue], *, is_call: bool = False) -> Span:
        """A part of the request begins."""
        span = Span(name, new_id(64), self._clock.monotonic_s(), is_call=is_call, attributes=dict(attributes))
        self.spans.append(span)
        return span

    def headers(self, span_id: int) -> dict[str, str]:
        """What tells another process that it works for the span `span_id`. Source: W3C Trace Context."""
        flags = _SAMPLED if self.is_sampled else 0
        headers = {"traceparent": f"00-{self.hex_id}-{span_id:016x}-{flags:02x}"}
        if self.parent is not None and self.parent.state:
            headers["tracestate"] = self.parent.state
        return headers

    async def watch(self, name: str, work: Awaitable[T], attributes: Mapping[str, AttributeValue]) -> T:
        """Await `work` as a part of the request."""
        span = self.begin(name, attributes)
        try:
            return await work
        except BaseException as error:
            span.fail(error)
            raise
        finally:
            span.ended_s = self._clock.monotonic_s()


def in_span(trace: RequestTrace | None, name: str, work: Awaitable[T], **attributes: Any) -> Awaitable[T]:
    """`work`, noted in `trace` as a part of the request where there is a trace. Attributes are named `k3gw.…`."""
    if trace is None:
        return work
    return trace.watch(name, work, {f"k3gw.{key}": value for key, value in attributes.items()})


def new_id(num_bits: int) -> int:
    """Of a trace or a span. Never 0, which stands for none."""
    return secrets.randbits(num_bits) or 1


def error_type(error: BaseException) -> str:
    """A name from a small set; what an error says may repeat what a client sent."""
    code = error.code if isinstance(error, GatewayError) else None
    return code or type(error).__name__


def is_error(error: BaseException) -> bool:
    """Whether it is for whoever runs the gateway. The conventions leave the status of a client's mistakes unset."""
    return not isinstance(error, GatewayError) or error.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR
