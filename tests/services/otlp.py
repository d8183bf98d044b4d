"""A collector of the tests' own: takes traces by OTLP over HTTP, and keeps them."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

KINDS = {1: "internal", 2: "server", 3: "client"}
STATUSES = {0: "unset", 1: "ok", 2: "error"}


@dataclass(frozen=True)
class CollectedSpan:
    """One span as it came over the wire; ids in hexadecimal, `parent_id` "" for none. `events`: name and time."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    trace_state: str
    start_ns: int
    end_ns: int
    status: str
    status_message: str
    attributes: dict[str, Any]
    events: list[tuple[str, int]]
    resource: dict[str, Any]

    @property
    def tenant(self) -> str | None:
        return self.attributes.get("k3gw.tenant")


@dataclass
class Trace:
    """All spans of one request: its own, and its parts by the time at which they began."""

    root: CollectedSpan
    parts: list[CollectedSpan]

    @property
    def names(self) -> list[str]:
        """Of the parts, sorted."""
        return sorted(part.name for part in self.parts)

    def part(self, name: str) -> CollectedSpan:
        """The only one of that name."""
        (found,) = (part for part in self.parts if part.name == name)
        return found


@dataclass
class Collector:
    """`requests` are (headers, bytes) of what came; `answer`: the status of what comes from now on."""

    port: int = 0
    answer: int = 200
    thawed: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    spans: list[CollectedSpan] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take(self, headers: dict[str, str], body: bytes) -> None:
        data = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        self.requests.append((headers, data))
        if self.answer != 200:
            return
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            facts = _values(resource.resource.attributes)
            self.spans += [_collected(span, facts) for scope in resource.scope_spans for span in scope.spans]

    def traces(self, tenant: str | None = None) -> list[Trace]:
        """What there is now, by the time of beginning; each is checked to be one whole tree."""
        found = []
        for trace_root in sorted((span for span in self.spans if span.kind == "server"), key=lambda span: span.start_ns):
            parts = [span for span in self.spans if span.parent_id == trace_root.span_id]
            trace = Trace(trace_root, sorted(parts, key=lambda span: span.start_ns))
            if tenant in (None, trace_root.tenant):
                check_tree(trace)
                found.append(trace)
        return found

    def trace_of(self, tenant: str, num_parts: int, timeout_s: float = 15.0) -> Trace:
        """The one trace of a tenant's only request, once it has so many parts."""
        end_s = time.monotonic() + timeout_s
        while True:
            found = self.traces(tenant)
            if found and len(found[0].parts) >= num_parts:
                assert 1 == len(found), found
                return found[0]
            assert time.monotonic() < end_s, f"no trace of {num_parts} parts within {timeout_s} s: {found}"
            time.sleep(0.01)


def check_tree(trace: Trace) -> None:
    """The parts belong to the request, and happened while it lasted."""
    root = trace.root
    assert root.start_ns <= root.end_ns
    for part in trace.parts:
        assert (root.trace_id, root.span_id, root.resource) == (part.trace_id, part.parent_id, part.resource), part
        assert root.start_ns <= part.start_ns <= part.end_ns <= root.end_ns, (root, part)
        assert part.kind == ("client" if part.name == "engine" else "internal")
        assert all(part.start_ns <= at_ns <= part.end_ns for _, at_ns in part.events)


@contextmanager
def otlp_collector() -> Iterator[Collector]:
    """A running `Collector`."""
    collector = Collector()
    collector.thawed.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.thawed.wait(60)
            if self.path == "/v1/traces":
                collector.take({name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(collector.answer if self.path == "/v1/traces" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Silence."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        collector.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            collector.thawed.set()
            server.shutdown()
            thread.join(10)


def _collected(span: Any, resource: dict[str, Any]) -> CollectedSpan:
    return CollectedSpan(
        name=span.name,
        kind=KINDS[span.kind],
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        trace_state=span.trace_state,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        status=STATUSES[span.status.code],
        status_message=span.status.message,
        attributes=_values(span.attributes),
        events=[(event.name, event.time_unix_nano) for event in span.events],
        resource=resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind or "string_value")
