"""Times of requests over HTTP: the script's pace is what the meters show, and waits are nobody's overhead."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.engine.scripted.engine import ScriptedEngine
from server.record import GenerationRecord
from tests.conftest import KEY, LiveGateway, StartGateway

END = ["</response>", "</message>"]
STEPS_PER_S = 118.0
MAX_TRIES = 6
NUM_STILL = 5
"""Looks that see the same: a gateway that is merely slow comes on in one of them."""


def scraped(gateway: LiveGateway) -> dict[str, float]:
    """Sums over the labels, `le` and the rest."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(httpx.get(f"{gateway.url}/metrics").text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def body(**more: Any) -> dict[str, Any]:
    return {
        "model": "kimi-k3",
        "messages": [{"role": "user", "content": "hi"}],
        "thinking": {"type": "disabled"},
        **more,
    }


def mean(found: dict[str, float], name: str) -> float:
    return found[f"k3gw_{name}_sum"] / found[f"k3gw_{name}_count"]


@pytest.mark.parametrize(("sizes", "per_step"), [(1, 1.0), ([3, 3, 3, 3, 3, 3, 4], 22 / 7)])
def test_the_published_speeds_are_shown_as_they_are(start_gateway: StartGateway, sizes: Any, per_step: float) -> None:
    """Where the machine lets it keep the pace: one that has others to serve makes an answer slower, never faster."""
    rule = {"tokens_per_step": sizes, "step_interval_ms": 1000 / STEPS_PER_S, "spec": {"draft": 7}}
    num_tokens = round(236 * per_step)
    speeds: list[float] = []
    while not speeds or (speeds[-1] < 0.97 and len(speeds) < MAX_TRIES):
        gateway = start_gateway([{**rule, "reply": [{"text": "a" * num_tokens}, *END]}])
        httpx.post(f"{gateway.url}/v1/chat/completions", json=body(n=3), headers=gateway.headers).raise_for_status()

        found = scraped(gateway)
        assert 3 == found["k3gw_request_output_tokens_per_second_count"]
        speeds.append(mean(found, "request_output_tokens_per_second") / (STEPS_PER_S * per_step))
        assert pytest.approx(1 / speeds[-1], rel=0.03) == mean(found, "inter_token_seconds") * STEPS_PER_S * per_step
        accepted, drafts = found["k3gw_engine_spec_accepted_tokens_total"], found["k3gw_engine_spec_drafts_total"]
        assert pytest.approx(per_step, rel=0.03) == 1 + accepted / drafts
        assert found["k3gw_spec_draft_tokens_total"] == found["k3gw_engine_spec_draft_tokens_total"]
        assert found["k3gw_spec_accepted_tokens_total"] == accepted
    assert pytest.approx(1, rel=0.03) == speeds[-1], speeds


@pytest.mark.parametrize("num_choices", [1, 3])
def test_waiting_for_the_engine_is_no_overhead(start_gateway: StartGateway, num_choices: int) -> None:
    gateway = start_gateway([{"reply": [{"wait_ms": 400}, {"text": "a"}, {"wait_ms": 200}, {"text": "b"}, *END]}], seats=1)
    httpx.post(f"{gateway.url}/v1/chat/completions", json=body(n=num_choices), headers=gateway.headers).raise_for_status()

    found = scraped(gateway)
    assert mean(found, "request_seconds") > 0.6 * num_choices, "choices wait for the one seat"
    assert 0 < mean(found, "overhead_seconds") < 0.2


def test_a_client_that_sends_and_reads_slowly_is_no_overhead(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads nothing, until sockets hold no more and the gateway waits, and then leaves."""
    endless = {"tokens_per_step": 50_000, "reply": [{"repeat": {"times": 10_000, "of": [{"text": "a" * 50_000}]}}]}
    gateway = start_gateway([endless], context_length=1 << 30)
    gateway._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)  # those that it accepts have it, too
    ended: list[GenerationRecord] = []
    monkeypatch.setattr(gateway.gateway, "ended", ended.append)
    data = json.dumps(body(stream=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(data)}\r\n\r\n"

    def num_made() -> int:
        assert isinstance(gateway.engine, ScriptedEngine)
        return sum(entry["num_generated_tokens"] for entry in gateway.engine.recorded()["requests"])

    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.connect(("127.0.0.1", int(gateway.url.rpartition(":")[2])))
        client.sendall(head.encode() + data[:10])
        time.sleep(0.2)
        client.sendall(data[10:])
        looks, end_s = [num_made()], time.monotonic() + 60
        while not looks[-1] or looks[-NUM_STILL:] != [looks[-1]] * NUM_STILL:
            assert time.monotonic() < end_s, "the gateway never waits for its reader"
            time.sleep(0.2)
            looks.append(num_made())
    while not ended:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    (record,) = ended

    assert record.client is not None
    assert record.client.received_s is not None
    assert record.ended_s is not None
    assert record.client.received_s - record.arrived_s > 0.15
    assert record.client.unread_s > 0.3
    assert record.overhead_s is not None
    assert record.overhead_s < 0.1, "nobody is to blame for the engine's time and the client's"


def test_a_cancelled_request_is_counted_with_what_it_had(start_gateway: StartGateway) -> None:
    gateway = start_gateway([{"reply": [{"text": "abc"}, "hang"]}])
    with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=body(stream=True), headers=gateway.headers) as answer:
        lines = (line for line in answer.iter_lines() if '"content":"' in line)
        while '"content":"c"' not in next(lines):
            pass
        assert 1 == scraped(gateway)["k3gw_inflight_requests"]
    (row,) = gateway.ledger(1)
    found = scraped(gateway)
    assert ("cancelled", 3) == (row["outcome"], row["output_tokens"])
    assert 0 == found["k3gw_inflight_requests"]
    assert row["input_tokens"] + row["output_tokens"] == found["k3gw_tokens_total"]
    assert 1 == found["k3gw_overhead_seconds_count"]
    assert 2 == found["k3gw_inter_token_seconds_count"], "the first output has no gap"
