"""Who is refused before all of the request has come learns why, whatever becomes of the connection."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.conftest import LiveGateway, StartGateway

SIZE = 3_000_000


def answer_to_a_large_request(gateway: LiveGateway, headers: dict[str, str]) -> bytes:
    """Sent as most clients do, which look for the answer once they have sent all: a connection that breaks is all they tell."""
    host, port = gateway.url.removeprefix("http://").split(":")
    head = "".join(f"{name}: {value}\r\n" for name, value in {"host": "x", "content-length": SIZE, **headers}.items())
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode())
        for _ in range(0, SIZE, 10_000):
            client.sendall(b"x" * 10_000)
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize("close", [{"connection": "close"}, {"Connection": "Close"}], ids=["close", "Close"])
def test_a_wrong_key_is_told_while_the_body_still_comes(start_gateway: StartGateway, close: dict[str, str]) -> None:
    gateway = start_gateway()
    for _ in range(3):
        answer = answer_to_a_large_request(gateway, {"authorization": "Bearer nobodys", **close})
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b'"code":"invalid_api_key"' in answer


def test_a_drain_is_told_while_the_body_still_comes(start_gateway: StartGateway) -> None:
    script: list[Any] = [{"reply": ["hang"]}]
    gateway = start_gateway(script)
    gateway.gateway.draining = True  # as it is while others' answers are waited for
    for _ in range(3):
        answer = answer_to_a_large_request(gateway, gateway.headers)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nconnection: close\r\n" in answer
        assert b'"code":"draining"' in answer
