"""A trace that can't be written costs nobody anything, and tells nothing of what was said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from structlog.testing import capture_logs

from server.clock import ManualClock
from server.sections import TracingSettings
from server.tracing.ending import EndedSpan
from server.tracing.trace import RequestTrace
from server.tracing.tracer import Tracer

PROMPT = "my own" + " words"  # a traceback has the lines of this file


class Sink:
    def parent_of(self, traceparent: str, tracestate: str) -> None:
        """None of these."""

    def write(self, trace: RequestTrace, spans: Sequence[EndedSpan]) -> NoReturn:
        raise ValueError(f"can't encode '{PROMPT}'")

    async def run(self) -> None:
        """Nothing to do."""


def test_why_it_failed_is_said_without_what_it_held() -> None:
    clock = ManualClock()
    tracer = Tracer(TracingSettings(exporter="otlp"), clock, Sink())
    trace = tracer.begin([], clock.monotonic_s())
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "scheme": "http",
        "headers": [],
        "server": None,
    }
    with capture_logs() as lines:
        tracer.end(trace, {**scope, "state": {"request_id": "r1", "log": {}}}, 200, clock.monotonic_s())

    (line,) = lines
    assert ("trace_failed", "error", "r1") == (line["event"], line["log_level"], line["request_id"])
    assert "ValueError: can't encode …" in line["exception"]
    assert PROMPT not in str(line)
