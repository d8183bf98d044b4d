"""Traces of one gateway: begun at the edge, ended there, handed on to whoever exports them.

Role: made where `tracing.exporter` is on; everywhere else there is none, and asking whether there is one is all it costs.
Invariant: handing on never waits, and what can't be handed on is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import structlog

from server.clock import Clock
from server.log_text import cause_text
from server.sections import TracingSettings
from server.tracing.content import Content
from server.tracing.ending import EndedSpan, Ending, spans_of
from server.tracing.sampling import Sampler
from server.tracing.trace import Parent, RequestTrace

MAX_STATE_CHARS: Final = 512
"""Of a `tracestate`: what the standard wants to be passed on. Longer ones are dropped."""

log = structlog.get_logger(__name__)


class SpanSink(Protocol):
    """Where spans go; `server.tracing.otlp.OtlpSink` is that."""

    def parent_of(self, traceparent: str, tracestate: str) -> Parent | None:
        """The span that the two headers of W3C Trace Context name; None for what is none."""
        ...

    def write(self, trace: RequestTrace, spans: Sequence[EndedSpan]) -> None:
        """Take the spans of a request. Never waits and never raises."""
        ...

    async def run(self) -> None:
        """Export until cancelled, and then for a few seconds what is left."""
        ...


class Tracer:
    """Begins and ends the traces of requests."""

    def __init__(self, settings: TracingSettings, clock: Clock, sink: SpanSink, sampler: Sampler | None = None) -> None:
        self._records_content = settings.record_content
        self._clock = clock
        self._sink = sink
        self._sampler = sampler or Sampler(settings, clock)

    async def run(self) -> None:
        """Export until cancelled."""
        await self._sink.run()

    def begin(self, headers: Iterable[tuple[bytes, bytes]], arrived_s: float) -> RequestTrace:
        """A request has come, with these headers."""
        parents = [value for name, value in headers if name == b"traceparent"]
        parent: Parent | None = None
        if len(parents) == 1:
            states = ",".join(value.decode("latin-1") for name, value in headers if name == b"tracestate")
            parent = self._sink.parent_of(parents[0].decode("latin-1"), states if len(states) <= MAX_STATE_CHARS else "")
        return RequestTrace(self._clock, arrived_s, parent, Content() if self._records_content else None)

    def identify(self, trace: RequestTrace, tenant: str | None) -> None:
        """It is known whose request it is: whether it is sampled is decided. `tenant`: None where it will never be known."""
        if trace.is_sampled is None:
            trace.is_sampled = self._sampler.decide(tenant, trace.parent)

    def end(self, trace: RequestTrace, scope: Any, status: int, ended_s: float) -> None:
        """The last byte has gone out, or nobody takes it any more."""
        state = scope["state"]
        self.identify(trace, state["tenant"].name if "tenant" in state else None)
        if not trace.is_sampled:
            return
        try:
            self._sink.write(trace, spans_of(trace, Ending(scope, status, ended_s, state)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the request has been answered
            log.error("trace_failed", request_id=state["request_id"], exception=cause_text(error))


def make_tracer(settings: TracingSettings, clock: Clock) -> Tracer | None:
    """What the settings ask for; None where that is nothing. Raises `ValueError` where OpenTelemetry is not installed."""
    if settings.exporter == "off":
        return None
    try:
        from server.tracing.otlp import OtlpSink
    except ImportError as error:
        raise ValueError(
            f"tracing.exporter: is `otlp`, and `{error.name}` is not installed; run `pip install 'k3-gateway[tracing]'`"
        ) from error
    return Tracer(settings, clock, OtlpSink(settings, clock))
