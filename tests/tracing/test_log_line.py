"""The one line that the log has of a request says what is asked of it first, and which trace it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from server import logs
from server.sections import LogSettings
from tests.services.otlp import Collector
from tests.tracing.conftest import SCRIPT
from tests.wire.customers import Customer, House, open_house, wait_for

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(autouse=True)
def _json() -> Iterator[None]:
    logs.configure(LogSettings(level="info", format="json"))
    yield
    structlog.reset_defaults()
    logs.configure(LogSettings(level="error"))


def lines_of(customer: Customer, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    return [line for line in lines if line.get("tenant") == customer.name and line["method"] == "POST"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request(collector: Collector, tracing: dict[str, Any], capsys: pytest.CaptureFixture[str], stream: bool) -> None:
    with open_house(SCRIPT, tracing=tracing) as house:
        customer = house.tenant()
        answer = customer.chat(stream=stream)
        (row,) = house.rows(customer, 1)
        trace = collector.trace_of(customer.name, 5)
    (line,) = lines_of(customer, capsys)

    expected = {
        "request_id": answer.headers["x-request-id"],
        "key_id": customer.key_id,
        "model": "kimi-k3",
        "status": 200,
        "input_tokens": row["input_tokens"],
        "cached_tokens": 8,
        "output_tokens": row["output_tokens"],
        "outcome": "finished",
        "trace_id": trace.root.trace_id,
    }
    assert expected == {name: line[name] for name in expected}
    assert 0 <= line["queue_seconds"] <= line["ttft_seconds"] <= line["seconds"]
    assert customer.key not in repr(line)


def ask(house: House, capsys: pytest.CaptureFixture[str], **headers: str) -> dict[str, Any]:
    customer = house.tenant()
    customer.headers |= headers
    customer.chat()
    lines: list[dict[str, Any]] = wait_for(lambda: lines_of(customer, capsys))
    return lines[0]


def test_the_trace_of_a_client_is_named_where_it_is_not_sampled_and_ours_is_not(
    collector: Collector, tracing: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with open_house(SCRIPT, tracing={**tracing, "sample_ratio": 0}) as house:
        assert TRACE == ask(house, capsys, traceparent=f"00-{TRACE}-{SPAN}-00")["trace_id"]
        assert "trace_id" not in ask(house, capsys)
    with open_house(SCRIPT) as house:
        assert "trace_id" not in ask(house, capsys, traceparent=f"00-{TRACE}-{SPAN}-01")
