"""Exporting costs requests nothing, whatever the collector does, and nothing at all where it is off."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from structlog.testing import capture_logs

from server import logs
from server.clock import ManualClock, SystemClock
from server.sections import LogSettings, TracingSettings
from server.tracing import otlp
from server.tracing.ending import EndedSpan
from server.tracing.otlp import FLUSH_TIMEOUT_S, MAX_WAITING_SPANS, WARNING_INTERVAL_S, OtlpSink
from server.tracing.trace import RequestTrace
from server.tracing.tracer import make_tracer
from tests.services.gateway import GatewayProcess, running
from tests.services.otlp import Collector, otlp_collector
from tests.tracing.conftest import SCRIPT
from tests.wire.customers import open_house

NOT_A_PORT = "http://127.0.0.1:9"


@pytest.fixture
def own(fast_export: None) -> Iterator[Collector]:
    with otlp_collector() as running:
        yield running


@pytest.fixture(autouse=True)
def _loud() -> Iterator[None]:
    logs.configure(LogSettings(level="warning"))
    yield
    structlog.reset_defaults()
    logs.configure(LogSettings(level="error"))


def span(number: int) -> EndedSpan:
    return EndedSpan("chat", "server", number, 0, 10, 20, {"number": number})


async def run_with(sink: OtlpSink, spans: int, clock: ManualClock | SystemClock, timeout_s: float = 0.0) -> float:
    """Write so many, wait so long, and stop; how long stopping took."""
    task = asyncio.ensure_future(sink.run())
    await asyncio.sleep(0)
    for number in range(1, 1 + spans):
        sink.write(RequestTrace(clock, clock.monotonic_s()), [span(number)])
    await asyncio.sleep(timeout_s)
    task.cancel()
    began_s = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await task
    return time.monotonic() - began_s


async def test_what_waits_is_exported_at_the_end(own: Collector) -> None:
    clock = SystemClock()
    took_s = await run_with(OtlpSink(TracingSettings(exporter="otlp", endpoint=own.endpoint), clock), 2000, clock)

    assert list(range(1, 2001)) == sorted(found.attributes["number"] for found in own.spans)
    assert took_s < FLUSH_TIMEOUT_S


async def test_headers_go_with_every_export_and_nowhere_else(own: Collector, capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    settings = TracingSettings(exporter="otlp", endpoint=own.endpoint, headers={"authorization": "Bearer hush-hush"})
    own.answer = 401
    await run_with(OtlpSink(settings, clock), 3, clock, 0.1)

    assert {"Bearer hush-hush"} == {headers["authorization"] for headers, _ in own.requests}
    assert "hush" not in capsys.readouterr().err + repr(settings)


@pytest.mark.parametrize(
    ("answer", "reason"), [(401, "HTTP 401"), (404, "HTTP 404"), (None, "Connection refused")], ids=lambda value: str(value)
)
async def test_it_is_said_why_a_collector_has_not_got_the_traces(
    own: Collector, monkeypatch: pytest.MonkeyPatch, answer: int | None, reason: str
) -> None:
    monkeypatch.setattr(otlp, "EXPORT_TIMEOUT_S", 0.1)
    clock = ManualClock()
    own.answer = answer or own.answer
    sink = OtlpSink(TracingSettings(exporter="otlp", endpoint=own.endpoint if answer else f"{NOT_A_PORT}/secret-path"), clock)
    with capture_logs() as lines:
        task = asyncio.ensure_future(sink.run())
        await asyncio.sleep(0)
        sink.write(RequestTrace(clock, clock.now_s), [span(1)])
        async with asyncio.timeout(60):
            while not lines:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])

    assert [("traces_not_exported", reason)] == [(line["event"], line["reason"]) for line in lines]
    assert "secret" not in str(lines)


async def test_a_collector_that_is_away_is_a_warning_a_minute(
    fast_export: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "EXPORT_TIMEOUT_S", 0.1)
    clock = ManualClock()
    sink = OtlpSink(TracingSettings(exporter="otlp", endpoint=f"{NOT_A_PORT}/secret-path"), clock)
    with capture_logs() as lines:
        task = asyncio.ensure_future(sink.run())
        for _ in range(2):
            for number in range(1, 6):
                await asyncio.sleep(0)
                before = len(lines)
                sink.write(RequestTrace(clock, clock.now_s), [span(number)])
                if number == 1:
                    async with asyncio.timeout(60):
                        while len(lines) == before:
                            await asyncio.sleep(0.01)
            clock.advance(WARNING_INTERVAL_S + 1)
        task.cancel()
        await asyncio.wait([task])

    assert {"traces_not_exported"} == {line["event"] for line in lines}
    assert 3 >= len(lines)
    assert sum(line["num_spans"] for line in lines) <= 10
    assert {"127.0.0.1:9"} == {line["collector"] for line in lines}
    assert "" == capsys.readouterr().err


async def test_no_more_waits_than_may(own: Collector) -> None:
    own.thawed.clear()
    clock = ManualClock()
    with capture_logs() as lines:
        sink = OtlpSink(TracingSettings(exporter="otlp", endpoint=own.endpoint), clock)
        task = asyncio.ensure_future(sink.run())
        await asyncio.sleep(0)
        for number in range(1, MAX_WAITING_SPANS + 101):
            sink.write(RequestTrace(clock, clock.now_s), [span(number)])
        own.thawed.set()
        task.cancel()
        await asyncio.wait([task])

    assert 0 < len(own.spans) <= MAX_WAITING_SPANS + 100
    assert ["traces_not_exported"] == [line["event"] for line in lines]


def test_a_collector_that_hangs_holds_up_neither_requests_nor_the_end(own: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "FLUSH_TIMEOUT_S", 0.5)
    own.thawed.clear()
    with open_house(SCRIPT, tracing={"exporter": "otlp", "endpoint": own.endpoint}) as house:
        customer = house.tenant()
        for _ in range(20):
            assert 200 == customer.chat().status
        assert 20 == len(house.rows(customer, 20))
        began_s = time.monotonic()
        house.gateway.stop()
        took_s = time.monotonic() - began_s
        own.thawed.set()
        assert took_s < 30
        house.gateway.stop = lambda: None  # type: ignore[method-assign]


def test_a_process_with_a_collector_that_hangs_ends_in_order(own: Collector, tmp_path: Path) -> None:
    """Neither the exporter's thread nor the one that flushes is waited for."""
    own.thawed.clear()
    gateway = GatewayProcess(tmp_path, SCRIPT, tracing={"exporter": "otlp", "endpoint": own.endpoint}, tenants={"acme": {}})
    with running(gateway), httpx.Client(timeout=30) as http:
        body = {"model": "kimi-k3", "messages": [{"role": "user", "content": "hi"}]}
        headers = {"authorization": f"Bearer {gateway.key_of(http, 'acme')}"}
        assert 200 == http.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers).status_code
        began_s = time.monotonic()
        assert 0 == gateway.end()
        took_s = time.monotonic() - began_s
        own.thawed.set()
    assert FLUSH_TIMEOUT_S < took_s < FLUSH_TIMEOUT_S + 30
    assert "Traceback" not in gateway.log


def test_off_is_nothing_and_imports_nothing() -> None:
    assert make_tracer(TracingSettings(), ManualClock()) is None
    code = """
import sys, server.serving, server.app
from server.settings import Settings
async def never(): ...
server.app.create_app(Settings(), never)
print(sorted({"server.tracing.otlp", "opentelemetry.sdk.trace", "opentelemetry.exporter", "google.protobuf", "requests"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "[]" == done.stdout.strip()


def test_without_the_packages_the_setting_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "server.tracing.otlp", None)
    with pytest.raises(ValueError, match=r"tracing.exporter: is `otlp`.*k3-gateway\[tracing\]"):
        make_tracer(TracingSettings(exporter="otlp"), ManualClock())


def settings_of(**fields: Any) -> TracingSettings:
    return TracingSettings.model_validate(fields)


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("http://collector/otlp/v1/traces", "http://collector/otlp/v1/traces"),
    ],
)
def test_the_path_of_an_endpoint(url: str, whole: str) -> None:
    assert whole == settings_of(endpoint=url).endpoint


@pytest.mark.parametrize("url", ["collector:4318", "grpc://collector", "http://", "http://me:pw@collector", "http://c/?key=1"])
def test_what_is_no_endpoint(url: str) -> None:
    with pytest.raises(ValueError, match=r"tracing\.headers"):
        settings_of(endpoint=url)


def test_yaml_off() -> None:
    assert "off" == settings_of(exporter=False).exporter
