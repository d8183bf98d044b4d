"""Clients that offer HTTP/2 with a request, and clients that know no more than HTTP/1.0, on connections spoken on by hand."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from tests.conftest import LiveGateway, StartGateway

OFFERS = {
    "HTTP/2": b"upgrade: h2c\r\nconnection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABk\r\n",
    "HTTP/2, spelled otherwise": b"Connection: upgrade\r\nUPGRADE: H2C, foo/2\r\n",
    "WebSocket": b"upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-key: AAAA\r\nsec-websocket-version: 13\r\n",
}
TEXT = "Hello, world! " * 20
SCRIPT: list[Any] = [{"tokens_per_step": 3, "reply": [{"text": TEXT}, {"control": ["</response>", "</message>"]}, "stop"]}]


def connect(gateway: LiveGateway) -> socket.socket:
    host, port = gateway.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def request(
    gateway: LiveGateway, more: bytes = b"", *, version: str = "1.1", stream: bool = False, chunked: bool = False
) -> bytes:
    """Of a conversation. `more`: header lines."""
    message = {"role": "user", "content": "x" * 1000}
    fields = {"model": "kimi-k3", "messages": [message], "thinking": {"type": "disabled"}, "stream": stream}
    content = json.dumps(fields).encode()
    head = [
        f"POST /v1/chat/completions HTTP/{version}",
        "host: x",
        *(f"{name}: {value}" for name, value in gateway.headers.items()),
    ]
    if chunked:
        head, content = [*head, "transfer-encoding: chunked"], b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
    else:
        head = [*head, f"content-length: {len(content)}"]
    return "\r\n".join([*head, ""]).encode() + more + b"\r\n" + content


def answer_on(connection: socket.socket) -> tuple[bytes, bytes]:
    """Head and body of the next answer, which has a length."""
    received = b""
    while True:
        head, end, body = received.partition(b"\r\n\r\n")
        lengths = [int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length: ")]
        if end and len(body) >= lengths[0]:
            return head, body
        data = connection.recv(65536)
        assert data, received
        received += data


def rest_of(connection: socket.socket) -> bytes:
    received = b""
    while data := connection.recv(65536):
        received += data
    return received


@pytest.mark.parametrize("cut", [None, 30, 150, -700, -1])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS.keys())
def test_what_is_offered_beside_a_request_is_not_taken(
    start_gateway: StartGateway, offer: bytes, chunked: bool, cut: int | None
) -> None:
    gateway = start_gateway(SCRIPT)
    whole = request(gateway, offer, chunked=chunked)
    pieces = [whole] if cut is None else [whole[:cut], whole[cut:]]
    with connect(gateway) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2):  # the connection is as good as any other afterwards
            for piece in pieces:
                connection.sendall(piece)
                httpx.get(f"{gateway.url}/health")  # the piece has been read
            head, body = answer_on(connection)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert TEXT == json.loads(body)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS.keys())
def test_a_request_without_a_body_may_offer_too(start_gateway: StartGateway, offer: bytes) -> None:
    gateway = start_gateway()
    with connect(gateway) as connection:
        for _ in range(3):
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n" + offer + b"\r\n")
            assert answer_on(connection)[0].startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("first", [b"", OFFERS["HTTP/2"]])
def test_a_request_sent_ahead_gets_no_answer_for_its_offer(start_gateway: StartGateway, first: bytes) -> None:
    gateway = start_gateway(SCRIPT)
    with connect(gateway) as connection:
        connection.sendall(request(gateway, first) + request(gateway, OFFERS["HTTP/2"]))
        received = rest_of(connection)
    assert received.startswith(b"HTTP/1.1 200 ")
    assert 1 == received.count(b"HTTP/1.1 ")
    assert TEXT == json.loads(received.partition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"]


def test_an_answer_without_a_length_has_no_chunks_in_http_1_0(start_gateway: StartGateway) -> None:
    gateway = start_gateway(SCRIPT)
    with connect(gateway) as connection:
        connection.sendall(request(gateway, version="1.0", stream=True))
        head, _, body = rest_of(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    *events, end = body.decode().split("\n\n")
    assert ("data: [DONE]", "") == (events[-1], end)
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert TEXT == "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


def test_an_answer_with_a_length_keeps_it_in_http_1_0(start_gateway: StartGateway) -> None:
    gateway = start_gateway(SCRIPT)
    with connect(gateway) as connection:
        connection.sendall(request(gateway, version="1.0"))
        head, _, body = rest_of(connection).partition(b"\r\n\r\n")
    assert b"content-length: %d\r\n" % len(body) in head
    assert TEXT == json.loads(body)["choices"][0]["message"]["content"]
