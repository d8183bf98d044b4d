"""Spans to a collector, by OTLP over HTTP.

Role: the only module that imports OpenTelemetry, imported where tracing is on. Its batch processor exports in a thread of its
own.
Invariant: a request never waits for a collector, and neither does the end of the process for more than `FLUSH_TIMEOUT_S`. What
a collector that is away does not take is dropped, and counted in a warning once a minute.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import requests
import structlog
from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from server import __version__
from server.clock import Clock
from server.sections import TracingSettings
from server.tracing.ending import EndedSpan
from server.tracing.trace import Parent, RequestTrace

EXPORT_TIMEOUT_S: Final = 5
FLUSH_TIMEOUT_S: Final = 3.0
MAX_WAITING_SPANS: Final = 4096
"""What waits for the exporter, at most."""

WARNING_INTERVAL_S: Final = 60.0
SCHEDULE_DELAY_MS: Final = 1000
_KINDS: Final = {"server": api.SpanKind.SERVER, "client": api.SpanKind.CLIENT, "internal": api.SpanKind.INTERNAL}
log = structlog.get_logger(__name__)


class OtlpSink:
    """`SpanSink` over OpenTelemetry's exporter."""

    def __init__(self, settings: TracingSettings, clock: Clock) -> None:
        self._settings = settings
        self._losses = _Losses(clock, settings.endpoint)
        self._propagator = TraceContextTextMapPropagator()
        self._scope = InstrumentationScope("k3-gateway", __version__)
        self._exporter: _CountingExporter | None = None
        self._processor: BatchSpanProcessor | None = None
        self._num_written = 0
        attributes = {
            "service.name": settings.service_name,
            "service.version": __version__,
            "service.instance.id": str(uuid.uuid4()),
            "host.name": socket.gethostname(),
        }
        self._resource = Resource.create(attributes)

    def parent_of(self, traceparent: str, tracestate: str) -> Parent | None:
        carrier = {"traceparent": traceparent, "tracestate": tracestate}
        found = api.get_current_span(self._propagator.extract(carrier)).get_span_context()
        if not found.is_valid:
            return None
        return Parent(found.trace_id, found.span_id, found.trace_flags.sampled, found.trace_state.to_header())

    def write(self, trace: RequestTrace, spans: Sequence[EndedSpan]) -> None:
        if self._processor is None or self._exporter is None:
            return
        if self._num_written + len(spans) - self._exporter.num_taken > MAX_WAITING_SPANS:
            self._losses.add(len(spans), "it is too slow for so many")
            return
        state = api.TraceState.from_header([trace.parent.state] if trace.parent else [])
        for span in spans:
            self._num_written += 1
            self._processor.on_end(self._readable(trace.trace_id, state, span))

    async def run(self) -> None:
        headers = {name: value.get_secret_value() for name, value in self._settings.headers.items()}
        session = _Session()
        exporter = OTLPSpanExporter(self._settings.endpoint, headers=headers, timeout=EXPORT_TIMEOUT_S, session=session)
        self._exporter = _CountingExporter(exporter, session, self._losses)
        processor = self._processor = BatchSpanProcessor(
            self._exporter, max_queue_size=MAX_WAITING_SPANS, schedule_delay_millis=SCHEDULE_DELAY_MS
        )
        try:
            await asyncio.Event().wait()
        finally:
            self._processor = None
            await _flush(processor)

    def _readable(self, trace_id: int, state: api.TraceState, span: EndedSpan) -> ReadableSpan:
        def context(span_id: int, *, is_remote: bool) -> api.SpanContext:
            return api.SpanContext(trace_id, span_id, is_remote, api.TraceFlags(api.TraceFlags.SAMPLED), state)

        return ReadableSpan(
            span.name,
            context(span.span_id, is_remote=False),
            parent=context(span.parent_id, is_remote=span.is_parent_remote) if span.parent_id else None,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(name, timestamp=at_ns) for name, at_ns in span.events],
            kind=_KINDS[span.kind],
            instrumentation_scope=self._scope,
            status=api.Status(api.StatusCode.ERROR if span.is_error else api.StatusCode.UNSET),
            start_time=span.start_ns,
            end_time=span.end_ns,
        )


class _Session(requests.Session):
    """Speaks with the collector, and remembers how that went: the exporter only tells its own log, with the whole URL.

    `outcome` has nothing of what was sent or answered: a status, or what the system or a library calls the failure.
    """

    outcome = ""

    def request(self, method: Any, url: Any, *arguments: Any, **options: Any) -> requests.Response:
        try:
            response = super().request(method, url, *arguments, **options)
        except Exception as error:
            self.outcome = _name_of(error)
            raise
        self.outcome = f"HTTP {response.status_code}"
        return response


def _name_of(error: BaseException) -> str:
    """What the system says to the operation that failed, else the kind of error."""
    found, link = type(error).__name__, error
    while (inner := link.__cause__ or link.__context__) is not None:
        link = inner
        if isinstance(link, OSError) and link.strerror:
            found = link.strerror
    return found


class _CountingExporter(SpanExporter):
    """Exports, and counts what it was given. All but `num_taken` belongs to the processor's thread."""

    def __init__(self, exporter: SpanExporter, session: _Session, losses: _Losses) -> None:
        self._exporter = exporter
        self._session = session
        self._losses = losses
        self.num_taken = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception:  # noqa: BLE001 - whatever it is, these spans are lost
            result = SpanExportResult.FAILURE
        self.num_taken += len(spans)
        if result is not SpanExportResult.SUCCESS:
            self._losses.add(len(spans), self._session.outcome)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _Losses:
    """Spans that nobody has taken: a warning at once, and then one a minute."""

    def __init__(self, clock: Clock, endpoint: str) -> None:
        self._clock = clock
        self._collector = urlsplit(endpoint).netloc.rpartition("@")[2]  # the rest of it may be secret
        self._num_lost = 0
        self._said_s: float | None = None
        self._lock = threading.Lock()

    def add(self, num_spans: int, reason: str) -> None:
        """So many more. Called on both threads."""
        with self._lock:
            self._num_lost += num_spans
            now_s = self._clock.monotonic_s()
            if self._said_s is not None and now_s < self._said_s + WARNING_INTERVAL_S:
                return
            self._said_s = now_s
            num_lost, self._num_lost = self._num_lost, 0
        log.warning("traces_not_exported", num_spans=num_lost, collector=self._collector, reason=reason)


async def _flush(processor: BatchSpanProcessor) -> None:
    """Export what is left, in the time there is. A thread of its own: the loop's pool is joined when the process ends."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def shut_down() -> None:
        with suppress(Exception):
            processor.shutdown()  # type: ignore[no-untyped-call]
        with suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=shut_down, name="traces-flush", daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(FLUSH_TIMEOUT_S):
            await done.wait()
