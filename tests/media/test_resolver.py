"""The system's resolver, as far as a machine without a network has one."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from server.media.resolver import resolve


async def test_addresses_of_a_name() -> None:
    found = await resolve("localhost", 80)

    assert found
    assert all(address.is_loopback for address in found)


async def test_a_name_without_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*args: object, **kwargs: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    with pytest.raises(socket.gaierror, match="no such name"):
        await resolve("img.test", 80)


@pytest.mark.parametrize("host", ["a" * 64 + ".invalid", "-", "a..b"])
async def test_what_can_be_no_name(host: str) -> None:
    with pytest.raises(socket.gaierror):
        await resolve(host, 80)


async def test_what_no_resolver_should_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    row = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("no address", 80))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: [row])

    with pytest.raises(OSError, match="no address"):
        await resolve("img.test", 80)


async def test_slow_names_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()
    real = socket.getaddrinfo

    def look_up(host: bytes, *args: object, **kwargs: object) -> object:
        if host == b"slow.test":
            ends.wait(10)
        return real(b"localhost", *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    slow = [asyncio.ensure_future(resolve("slow.test", 80)) for _ in range(50)]
    try:
        assert await resolve("fast.test", 80)
        assert not any(lookup.done() for lookup in slow)
        slow[0].cancel()
    finally:
        ends.set()
        outcomes = await asyncio.gather(*slow, return_exceptions=True)

    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert all(isinstance(outcome, list) for outcome in outcomes[1:])
