"""Servers of the tests' own that stand for the internet, and those that must never be asked.

127.7.7.0/24 is the internet here: `internet` allows it. A canary listens on the same port at addresses that are private.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from server.clock import ManualClock
from server.context import MediaLimits, Tenant
from server.media.addresses import Address
from server.media.fetch import Fetcher
from server.media_sections import MediaSettings

PUBLIC = "127.7.7.7"
OTHER = "127.7.7.8"
PRIVATE = ("127.0.0.1", "127.9.9.9", "::1")
FETCHING = Tenant("acme", media=MediaLimits(remote_urls=True))
SCOPE = b"acme's group"

Respond = Callable[["Visit"], Awaitable[None]]


@dataclass(slots=True)
class Visit:
    """One connection: the request it brought, and what to answer with."""

    request: bytes
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader

    async def send(self, data: bytes) -> None:
        """Send `data`, as far as anybody reads it."""
        self.writer.write(data)
        await self.writer.drain()

    async def hang(self) -> None:
        """Send nothing more until the other side goes."""
        await self.reader.read()


def answer(body: bytes = b"the image", status: str = "200 OK", *headers: str) -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def sends(data: bytes, *, hangs: bool = False) -> Respond:
    """Sends `data`, and closes, or `hangs`."""

    async def respond(visit: Visit) -> None:
        await visit.send(data)
        if hangs:
            await visit.hang()

    return respond


@dataclass(slots=True)
class Site:
    """A server that notes its visitors."""

    port: int
    respond: Respond
    requests: list[bytes] = field(default_factory=list)
    num_connections: int = 0
    num_open: int = 0

    async def visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.num_connections += 1
        self.num_open += 1
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(request)
            await self.respond(Visit(request, writer, reader))
        except (OSError, EOFError):
            pass
        finally:
            self.num_open -= 1
            writer.close()


def free_port() -> int:
    """A port that is free at every address, for a site and its canaries; no connection that goes out gets one of these."""
    for port in random.SystemRandom().sample(range(10_000, 32_000), 100):
        with socket.socket(socket.AF_INET) as four, socket.socket(socket.AF_INET6) as six, suppress(OSError):
            six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            four.bind(("0.0.0.0", port))
            six.bind(("::", port))
            return port
    raise AssertionError("no free port")


@asynccontextmanager
async def open_site(
    respond: Respond, address: str = PUBLIC, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Site]:
    """A site at `address`, on a port of its own if none is given."""
    site = Site(port or free_port(), respond)
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, site.port))
        server = await asyncio.start_server(site.visit, sock=listening, ssl=tls)
        try:
            yield site
        finally:
            server.close()
            await until(lambda: site.num_open == 0)


@asynccontextmanager
async def open_canaries(port: int) -> AsyncIterator[list[Site]]:
    """Sites at private addresses, on the port of the public one; they answer with a secret."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_site(sends(answer(b"secret")), address, port)) for address in PRIVATE]


@dataclass(slots=True)
class Names:
    """A resolver that answers what the test says, one answer after the other, the last for ever; it notes what it was asked."""

    answers: dict[str, list[list[str]]]
    asked: list[str] = field(default_factory=list)

    async def __call__(self, host: str, port: int) -> list[Address]:
        self.asked.append(host)
        answers = self.answers.get(host)
        if answers is None:
            raise OSError("no such name")
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ipaddress.ip_address(text) for text in found]


def names(**hosts: str) -> Names:
    """Names below `.test`, each with one address, or with several between spaces."""
    return Names({f"{name}.test": [addresses.split()] for name, addresses in hosts.items()})


@asynccontextmanager
async def open_fetcher(
    ports: Iterable[int],
    resolve: Any = None,
    clock: ManualClock | None = None,
    tls: ssl.SSLContext | None = None,
    **settings: Any,
) -> AsyncIterator[Fetcher]:
    """A fetcher for which 127.7.7.0/24 is public."""
    given = MediaSettings(ports=list(ports), **{"allowed_networks": ["127.7.7.0/24"], "fetch_timeout_s": 5.0, **settings})
    fetcher = Fetcher(given, clock or ManualClock(), resolve or names(img=PUBLIC), tls)
    try:
        yield fetcher
    finally:
        await fetcher.close()


async def until(holds: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait for what the event loop brings about."""
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0)


async def get(fetcher: Fetcher, url: str, tenant: Tenant = FETCHING, max_bytes: int = 1_000_000, scope: bytes = SCOPE) -> bytes:
    """What `fetch` brings, read and closed."""
    payload = await fetcher.fetch(url, tenant=tenant, max_bytes=max_bytes, scope=scope)
    try:
        assert payload.is_base64 is False
        assert payload.num_bytes <= max_bytes
        return payload.read()
    finally:
        payload.file.close()
