"""Gateways that trace, to a collector of the tests' own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from server.tracing import otlp
from tests.services.otlp import Collector, otlp_collector
from tests.wire.customers import END

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CITY = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = ["</response>", "<tools>", {"call": {"tool": "weather", "index": 1}}, "</call>", "</tools>", "</message>"]
SCRIPT: list[Any] = [
    {"when": {"contains": "silent"}, "reply": ["hang"]},
    {"when": {"contains": "hold"}, "reply": [{"text": "Hello"}, "hang"]},
    {"when": {"contains": "break at once"}, "reply": ["error"]},
    {"when": {"contains": "break"}, "reply": [{"text": "Hello"}, "error"]},
    {"when": {"contains": "die at once"}, "reply": ["die"]},
    {"when": {"contains": "die"}, "reply": [{"text": "Hello"}, "die"]},
    {"when": {"contains": "call"}, "reply": [{"control": CALL}, "stop"]},
    {
        "when": {"contains": "guess"},
        "tokens_per_step": 4,
        "spec": {"draft": 4, "accepted": 3},
        "reply": [{"text": "x" * 12}, *END],
    },
    {"tokens_per_step": 4, "cached_tokens": 8, "reply": [{"text": "The answer is yes, said at some length."}, *END]},
]


@pytest.fixture(scope="module")
def fast_export() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(otlp, "SCHEDULE_DELAY_MS", 10)
        yield


@pytest.fixture(scope="module")
def collector(fast_export: None) -> Iterator[Collector]:
    with otlp_collector() as running:
        yield running


@pytest.fixture(scope="module")
def tracing(collector: Collector) -> dict[str, Any]:
    """Settings that trace everything."""
    return {"exporter": "otlp", "endpoint": collector.endpoint}
