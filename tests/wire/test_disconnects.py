"""Clients that leave: the engine is freed promptly, whenever it happens, and no log calls it an error."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

Target = Any  # of conftest
Start = Callable[..., Any]
HELD = {"before the first token": ["hang"], "in the middle": [{"text": "Hello"}, "hang"]}


def leave(
    url: str, headers: dict[str, str], body: dict[str, Any], when: Callable[[socket.socket], Any], ahead: bytes = b""
) -> None:
    """Ask, send what is `ahead` of the answer, wait for `when`, and close the connection."""
    address = urlsplit(url)
    content = json.dumps(body).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", f"host: {address.netloc}", f"content-length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + content + ahead)
        when(connection)


def gauge(http: httpx.Client, target: Target, name: str, labels: str = "") -> float:
    """The sum of a metric's samples whose labels have `labels`."""
    text = http.get(f"{target.url}/metrics", headers=target.headers).text
    samples = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for found, value in samples if labels in found)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reply", HELD.values(), ids=HELD.keys())
def test_the_scripted_engine_is_freed(
    http: httpx.Client, start_gateway: Start, until: Any, scripted: Target, reply: list[Any], stream: bool, n: int
) -> None:
    gateway = start_gateway([{"reply": reply}])

    def recorded() -> Any:
        return http.get(f"{gateway.url}/debug/engine", headers=gateway.headers).json()

    def held(connection: socket.socket) -> None:
        num_said = 5 * (len(reply) - 1)
        until(lambda: [num_said] * n == [request["num_generated_tokens"] for request in recorded()["requests"]])

    leave(gateway.url, gateway.headers, scripted.body("x", stream=stream, n=n), held)
    until(lambda: ["closed"] * n == [request["end"] for request in recorded()["requests"]], 5)
    assert n == len(recorded()["aborts"])
    assert 0 == gateway.engine.num_unfinished
    target = type(scripted)(f"{gateway.url}/v1", scripted.key)
    until(lambda: 1 == gauge(http, target, "k3gw_requests_total", 'outcome="cancelled"'), 5)
    assert 0 == gauge(http, target, "k3gw_inflight_requests")


def test_a_client_that_stops_reading_holds_nobody_up(
    http: httpx.Client, start_gateway: Start, scripted: Target, until: Any
) -> None:
    """Its stream is paused; others go on, and it is dropped when it leaves."""
    endless = {"reply": [{"repeat": {"times": 10_000_000, "of": [{"text": "lorem "}]}}], "tokens_per_step": 6}
    gateway = start_gateway([{"when": {"contains": "forever"}, **endless}])
    target = type(scripted)(f"{gateway.url}/v1", scripted.key)
    url = f"{gateway.url}/v1/chat/completions"

    def asleep(connection: socket.socket) -> None:
        connection.recv(1000)
        assert 200 == http.post(url, json=target.body("x"), headers=gateway.headers).status_code

    leave(gateway.url, gateway.headers, target.body("forever", stream=True), asleep)
    until(lambda: 0 == gateway.engine.num_unfinished, 5)


AHEAD = {
    "a request": b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n",
    "part of one": b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: ",
    "a long one": b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n" + b"x" * 300_000,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reply", HELD.values(), ids=HELD.keys())
@pytest.mark.parametrize("ahead", AHEAD.values(), ids=AHEAD.keys())
def test_a_client_that_has_sent_more_is_missed_too(
    http: httpx.Client, start_gateway: Start, scripted: Target, until: Any, reply: list[Any], stream: bool, ahead: bytes
) -> None:
    gateway = start_gateway([{"reply": reply}])

    def held(connection: socket.socket) -> None:
        until(lambda: 1 == gateway.engine.num_unfinished)

    leave(gateway.url, gateway.headers, scripted.body("x", stream=stream), held, ahead)
    until(lambda: 0 == gateway.engine.num_unfinished, 5)
    recorded = http.get(f"{gateway.url}/debug/engine", headers=gateway.headers).json()
    assert ["closed"] == [request["end"] for request in recorded["requests"]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_is_missed_while_its_prompt_is_rendered(
    http: httpx.Client, start_gateway: Start, scripted: Target, until: Any, stream: bool
) -> None:
    gateway = start_gateway()
    generator = gateway.gateway.generator()
    rendering: list[str] = []

    async def prepare(job: Any) -> Any:
        rendering.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            rendering.append("over")

    generator.prepare = prepare
    leave(gateway.url, gateway.headers, scripted.body("x", stream=stream), lambda _: until(lambda: rendering))
    until(lambda: ["begun", "over"] == rendering, 5)
    target = type(scripted)(f"{gateway.url}/v1", scripted.key)
    until(lambda: 1 == gauge(http, target, "k3gw_requests_total", 'outcome="cancelled"'), 5)


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_rendering_has_its_status(http: httpx.Client, start_gateway: Start, scripted: Target, stream: bool) -> None:
    gateway = start_gateway(context_length=20, http={"keepalive_interval_s": 0.01})
    url = f"{gateway.url}/v1/chat/completions"
    response = http.post(url, json=scripted.body("x", stream=stream), headers=gateway.headers)
    assert (400, "context_length_exceeded") == (response.status_code, response.json()["error"]["code"])


def test_a_client_that_stops_reading_for_too_long_is_dropped(
    http: httpx.Client, start_gateway: Start, scripted: Target, until: Any
) -> None:
    endless = {"reply": [{"repeat": {"times": 10_000_000, "of": [{"text": "lorem "}]}}], "tokens_per_step": 6}
    gateway = start_gateway([endless], http={"write_timeout_s": 0.3})

    def asleep(connection: socket.socket) -> None:
        until(lambda: 1 == gateway.engine.num_unfinished)
        until(lambda: 0 == gateway.engine.num_unfinished, 10)

    leave(gateway.url, gateway.headers, scripted.body("x", stream=True), asleep)
    target = type(scripted)(f"{gateway.url}/v1", scripted.key)
    until(lambda: 1 == gauge(http, target, "k3gw_requests_total", 'outcome="cancelled"'), 5)


@pytest.mark.vllm
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("early", [False, True])
def test_vllm_is_freed(http: httpx.Client, vllm_gateway: Target, until: Any, stream: bool, early: bool) -> None:
    target = vllm_gateway
    until(lambda: 0 == gauge(http, target, "k3gw_engine_running_requests"))
    cancelled = gauge(http, target, "k3gw_requests_total", 'outcome="cancelled"')
    body = target.body(target.HELLO, stream=stream, max_tokens=6000, ignore_eos=True)
    num_logged = len(target.log)

    def busy(connection: socket.socket) -> None:
        name = "k3gw_inflight_requests" if early else "k3gw_engine_running_requests"
        until(lambda: 1 == gauge(http, target, name))

    leave(target.url, target.headers, body, busy)
    until(lambda: cancelled + 1 == gauge(http, target, "k3gw_requests_total", 'outcome="cancelled"'), 10)
    until(lambda: 0 == gauge(http, target, "k3gw_engine_running_requests"), 10)
    assert 0 == gauge(http, target, "k3gw_inflight_requests")
    (line,) = until(lambda: [line for line in target.log[num_logged:] if "outcome=cancelled" in line], 5)
    assert "[info" in line
    answer = http.post(f"{target.base_url}/chat/completions", json=target.body(target.CAPITAL), headers=target.headers)
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
