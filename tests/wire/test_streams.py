"""The bytes of a stream on a socket: their order, when the first is sent, and how an error ends them."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

Target = Any  # of conftest
Start = Callable[..., Any]
DONE = "data: [DONE]"
BODY = {"model": "kimi-k3", "messages": [{"role": "user", "content": "x"}], "thinking": {"type": "disabled"}, "stream": True}


def events(http: httpx.Client, url: str, headers: dict[str, str], body: dict[str, Any]) -> list[str]:
    """The events of a stream, comments included."""
    response = http.post(f"{url}/v1/chat/completions", json=body, headers=headers)
    assert (200, "text/event-stream") == (response.status_code, response.headers["content-type"].partition(";")[0])
    assert "content-length" not in response.headers
    *whole, end = response.text.split("\n\n")
    assert "" == end
    return whole


def data(events: list[str]) -> list[dict[str, Any]]:
    return [json.loads(event.removeprefix("data: ")) for event in events if event.startswith("data: {")]


def open_request(url: str, headers: dict[str, str], body: dict[str, Any]) -> socket.socket:
    """A socket on which the request has been sent."""
    address = urlsplit(url)
    content = json.dumps(body).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", f"host: {address.netloc}", f"content-length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    connection = socket.create_connection((address.hostname, address.port), timeout=30)
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)
    return connection


@pytest.fixture
def quiet_socket(start_gateway: Start, http: httpx.Client, until: Any) -> Iterator[tuple[Any, socket.socket]]:
    """A gateway whose engine has a request and says nothing, and the socket that waits for it."""
    gateway = start_gateway([{"reply": ["hang"]}])
    with open_request(gateway.url, gateway.headers, BODY) as connection:
        until(lambda: http.get(f"{gateway.url}/debug/engine", headers=gateway.headers).json()["requests"])
        yield gateway, connection


def test_the_order_of_a_stream(http: httpx.Client, target: Target) -> None:
    body = target.body(target.THINK, stream=True, stream_options={"include_usage": True}, thinking={"type": "enabled"})
    found = events(http, target.url, target.headers, body)
    assert DONE == found[-1]
    assert 1 == found.count(DONE)
    first, *middle, usage = data(found)
    assert {"role": "assistant", "content": ""} == first["choices"][0]["delta"]
    assert [] == usage["choices"]
    assert usage["usage"]["completion_tokens"] > 0
    *middle, finish = middle
    assert ({}, "stop") == (finish["choices"][0]["delta"], finish["choices"][0]["finish_reason"])
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in [first, *middle])
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in middle)
    assert all(any(chunk["choices"][0]["delta"].values()) for chunk in middle)  # none without text
    assert all(chunk["usage"] is None for chunk in [first, *middle, finish])


def test_every_chunk_has_the_same_head(http: httpx.Client, target: Target) -> None:
    chunks = data(events(http, target.url, target.headers, target.body(target.CAPITAL, stream=True)))
    heads = {(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks}
    ((answer_id, kind, _, model),) = heads
    assert (True, "chat.completion.chunk", target.model) == (answer_id.startswith("chatcmpl-"), kind, model)
    assert all("usage" not in chunk for chunk in chunks)


def test_choices_are_told_apart_by_index(http: httpx.Client, target: Target) -> None:
    body = target.body(target.HELLO, stream=True, n=3, stream_options={"include_usage": True})
    *chunks, usage = data(events(http, target.url, target.headers, body))
    choices = [chunk["choices"][0] for chunk in chunks]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert "assistant" == own[0]["delta"]["role"]
        assert "stop" == own[-1]["finish_reason"]
        assert 1 == sum(choice["finish_reason"] is not None for choice in own)
    assert {0, 1, 2} == {choice["index"] for choice in choices}
    assert usage["usage"]["total_tokens"] > 0


def test_nothing_is_sent_before_the_engine_speaks(quiet_socket: tuple[Any, socket.socket]) -> None:
    gateway, connection = quiet_socket
    assert [] == select.select([connection], [], [], 0.3)[0]
    gateway.engine.kill()
    assert connection.recv(100).startswith(b"HTTP/1.1 503 ")


def test_the_first_bytes_come_with_the_first_token_not_with_the_last(start_gateway: Start) -> None:
    gateway = start_gateway([{"reply": [{"text": "Hello"}, "hang"]}])
    with open_request(gateway.url, gateway.headers, BODY) as connection:
        received = b""
        while b'"content":"o"' not in received:
            received += connection.recv(65536)
    assert received.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("word", "status", "code"), [("error", 500, "engine_error"), ("die", 503, "engine_dead")])
def test_an_error_before_the_first_byte_has_its_status(
    http: httpx.Client, start_gateway: Start, word: str, status: int, code: str
) -> None:
    gateway = start_gateway([{"reply": [{"wait_ms": 30}, word]}])
    response = http.post(f"{gateway.url}/v1/chat/completions", json=BODY, headers=gateway.headers)
    assert (status, "application/json") == (response.status_code, response.headers["content-type"])
    assert code == response.json()["error"]["code"]
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(("word", "code"), [("error", "engine_error"), ("die", "engine_dead")])
@pytest.mark.parametrize("n", [1, 2])
def test_an_error_after_the_first_byte_is_the_last_frame(
    http: httpx.Client, start_gateway: Start, word: str, code: str, n: int
) -> None:
    gateway = start_gateway([{"reply": [{"text": "It is"}, word]}])
    body = {**BODY, "n": n, "stream_options": {"include_usage": True}}
    found = events(http, gateway.url, gateway.headers, body)
    assert DONE not in found
    *chunks, last = data(found)
    assert code == last["error"]["code"]
    assert {"message", "type", "param", "code"} == set(last["error"])
    assert all("error" not in chunk for chunk in chunks)
    assert "It is" == "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"][0]["index"] == 0)


def test_a_silence_is_filled_with_comments(http: httpx.Client, start_gateway: Start) -> None:
    script = [{"reply": [{"text": "a"}, {"wait_ms": 500}, {"text": "b"}, "</response>", "</message>", "stop"]}]
    gateway = start_gateway(script, http={"keepalive_interval_s": 0.05})
    found = events(http, gateway.url, gateway.headers, BODY)
    first = next(index for index, event in enumerate(found) if '"content":"a"' in event)
    second = next(index for index, event in enumerate(found) if '"content":"b"' in event)
    assert {": keep-alive"} == set(found[first + 1 : second])
    assert DONE == found[-1]


def test_a_stream_that_is_not_silent_has_no_comments(http: httpx.Client, start_gateway: Start) -> None:
    gateway = start_gateway()
    assert all(event.startswith("data: ") for event in events(http, gateway.url, gateway.headers, BODY))


def test_a_long_silence_before_the_first_token_opens_the_stream(http: httpx.Client, start_gateway: Start) -> None:
    gateway = start_gateway([{"reply": [{"wait_ms": 300}, "error"]}], http={"keepalive_interval_s": 0.05})
    found = events(http, gateway.url, gateway.headers, BODY)
    assert {": keep-alive"} == set(found[:-1])
    assert "engine_error" == data(found)[0]["error"]["code"]


def test_two_requests_on_one_connection(target: Target) -> None:
    with httpx.Client(timeout=60) as http:
        answers = [events(http, target.url, target.headers, target.body(target.CAPITAL, stream=True)) for _ in range(2)]
        assert all(DONE == found[-1] for found in answers)
        response = http.get(f"{target.base_url}/models", headers=target.headers)
    assert 200 == response.status_code
