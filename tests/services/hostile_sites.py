"""An internet that means ill: names that resolve to what they should not, and one site where each path is another bad server.

127.7.7.0/24 is the internet here. Canaries listen at private addresses, on the site's port; every connection that the gateway
begins is noted, so that those to addresses where nobody listens are seen, too.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpcore
import pytest

from server.media.addresses import Address
from tests.media.sites import OTHER, PUBLIC, Respond, Site, Visit, answer, free_port, open_canaries, open_site, sends
from tests.services.hostile_files import PAGE, plain

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
MAX_BYTES = 50_000
"""Of an image from a site, in these tests."""

ADDRESSES = {
    "img": [[PUBLIC]],
    "other": [[OTHER]],
    "rebound": [[PUBLIC], ["127.0.0.1"]],
    "private": [["10.0.0.1"]],
    "loop": [["127.0.0.1"]],
    "localhost": [["127.0.0.1", "::1"]],
    "six": [["::1"]],
    "both": [[PUBLIC, "127.0.0.1"]],
    "many": [[PUBLIC] * 1000 + ["192.168.0.1"]],
    "mapped": [["::ffff:10.0.0.1"]],
    "nat64": [["64:ff9b::a00:1"]],
    "link": [["fe80::1"]],
    "metadata": [["169.254.169.254"]],
    "carrier": [["100.64.0.1"]],
    "multicast": [["224.0.0.1"]],
    "unset": [["0.0.0.0"]],
    "empty": [[]],
}
"""First part of a name, up to a dash or a dot -> what its lookups answer, one after the other."""


class Names:
    """A resolver; `asked` counts the lookups of each name. `mute-…` is never answered."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    async def __call__(self, host: str, port: int) -> list[Address]:
        self.asked[host] += 1
        kind = host.partition(".")[0].partition("-")[0]
        if kind == "mute":
            await asyncio.Event().wait()
        if kind not in ADDRESSES:
            raise OSError("no such name")
        answers = ADDRESSES[kind]
        return [ipaddress.ip_address(text) for text in answers[min(self.asked[host], len(answers)) - 1]]


async def _answer_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As a server does that is spoken to in what it takes for noise."""
    with suppress(OSError):
        writer.write(answer(b"secret", "400 Bad Request"))
        await writer.drain()
        await reader.read()
    writer.close()


async def _reset(visit: Visit) -> None:
    await visit.send(OK + b"Content-Length: 1000\r\n\r\n" + plain()[:100])
    visit.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    visit.writer.transport.abort()


def _for_ever(head: bytes, more: bytes, pause_s: float = 0) -> Respond:
    async def respond(visit: Visit) -> None:
        await visit.send(head)
        while True:
            await visit.send(more)
            await asyncio.sleep(pause_s)

    return respond


def _redirect(to: str, status: str = "302 Found") -> Respond:
    async def respond(visit: Visit) -> None:
        host = visit.request.split(b"Host: ", 1)[1].split(b"\r\n", 1)[0].decode()
        port = host.rpartition(":")[2]
        await visit.send(answer(b"secret", status, "Location: " + to.replace("$host", host).replace("$port", port)))

    return respond


NOT_200, NO_HTTP, TOO_LONG = (
    "an answer that is no 200, too slow or too long",
    "broken or oversized HTTP",
    "larger than the `50000`",
)
BROKEN: dict[str, tuple[Respond, str, str]] = {
    "404": (sends(answer(b"secret", "404 Secret")), NOT_200, "status `404`"),
    "500": (sends(answer(b"secret", "500 Secret")), NOT_200, "status `500`"),
    "401": (sends(answer(b"", "401 Who", "WWW-Authenticate: Basic")), NOT_200, "status `401`"),
    "206": (sends(answer(plain(), "206 Part")), NOT_200, "status `206`"),
    "204": (sends(b"HTTP/1.1 204 No\r\n\r\n"), NOT_200, "status `204`"),
    "999": (sends(answer(plain(), "999 Secret")), NOT_200, "status `999`"),
    "html": (sends(answer(PAGE, "200 OK", "Content-Type: image/png")), "another kind of file", "`HTML`"),
    "nothing": (sends(answer(b"")), "no bytes", "is empty"),
    "gzip": (sends(answer(b"\x1f\x8b", "200 OK", "Content-Encoding: gzip")), NOT_200, "`Content-Encoding`"),
    "http09": (sends(plain()), NOT_200, NO_HTTP),
    "closed": (sends(b""), NOT_200, NO_HTTP),
    "ssh": (sends(b"SSH-2.0-secret\r\n"), NOT_200, NO_HTTP),
    "reset": (_reset, NOT_200, "broke before the image was there"),
    "short": (sends(OK + b"Content-Length: 1000\r\n\r\n" + plain()), NOT_200, NO_HTTP),
    "long": (sends(OK + b"Content-Length: 20\r\n\r\n" + plain()), "truncated or corrupt", "`PNG` file"),
    "negative": (sends(OK + b"Content-Length: -1\r\n\r\n"), NOT_200, NO_HTTP),
    "lengths": (sends(OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"), NOT_200, NO_HTTP),
    "smuggled": (sends(OK + b"Content-Length: 3\r\nTransfer-Encoding: xchunked\r\n\r\nabc"), NOT_200, NO_HTTP),
    "announced": (sends(OK + b"Content-Length: 99999999999\r\n\r\n", hangs=True), NOT_200, TOO_LONG),
    "endless": (_for_ever(OK + b"\r\n", bytes(10_000)), NOT_200, TOO_LONG),
    "chunks": (_for_ever(CHUNKED, b"5\r\nabcde\r\n" * 100), NOT_200, TOO_LONG),
    "headers": (_for_ever(OK, b"a:b\r\n" * 100), NOT_200, NO_HTTP),
    "header": (_for_ever(OK + b"a: ", b"x" * 10_000), NOT_200, NO_HTTP),
    "trailers": (_for_ever(CHUNKED + b"0\r\n", b"a:b\r\n" * 100), NOT_200, NO_HTTP),
    "continues": (_for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 50), NOT_200, NO_HTTP),
    "upgrade": (sends(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), NOT_200, NO_HTTP),
    "chunk": (sends(CHUNKED + b"-5\r\nabcde\r\n0\r\n\r\n"), NOT_200, NO_HTTP),
}
"""Path on the site -> what it sends, what the documentation calls it, what its error says."""

SLOW: dict[str, Respond] = {
    "hangs": sends(b"", hangs=True),
    "half": sends(OK + b"Content-Length: 1000\r\n\r\nabc", hangs=True),
    "drips": _for_ever(OK + b"\r\n", b"x", 0.01),
    "drips-its-head": _for_ever(OK + b"a: ", b"x", 0.01),
    "drips-chunks": _for_ever(CHUNKED, b"1\r\nx\r\n", 0.01),
    "informs": _for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
}
"""As `BROKEN`; nothing comes of these in time."""

REDIRECTS: dict[str, tuple[Respond, int, str]] = {
    "to-loopback": (_redirect("http://127.0.0.1:$port/secret"), 1, "is not a public address"),
    "to-six": (_redirect("http://[::1]:$port/secret", "307 Again"), 1, "is not a public address"),
    "to-number": (_redirect("http://2130706433:$port/secret", "308 Again"), 1, "is not a public address"),
    "to-slashes": (_redirect("//127.0.0.1:$port/secret", "301 Moved"), 1, "is not a public address"),
    "to-metadata": (_redirect("http://169.254.169.254/latest/meta-data/"), 1, "is not a public address"),
    "to-name": (_redirect("http://loop.test:$port/secret"), 1, "has no address that is public"),
    "to-file": (_redirect("file:///etc/passwd"), 1, "`file:` URLs are not fetched"),
    "to-data": (_redirect("data:image/png;base64,iVBORw0KGgo="), 1, "`data:` URLs are not fetched"),
    "to-user": (_redirect("http://u:hunter2@img.test:$port/"), 1, "credentials"),
    "to-tabs": (_redirect("http://127.0.0.1:$port\t/secret"), 1, "is no URL"),
    "to-nowhere": (_redirect(""), 1, "is no URL"),
    "to-long": (_redirect("http://img.test:$port/" + "x" * 9000), 1, "longer than"),
    "in-circles": (_redirect("http://$host/in-circles"), 4, "once more after `3` redirects"),
    "back": (_redirect("http://$host/back"), 1, "has no address that is public"),
    "from-afar": (_redirect("http://other.test:$port/to-loopback"), 2, "is not a public address"),
}
"""As `BROKEN`, for gateways that follow three redirects: what is sent, the connections that are made, what the error says."""

_PATHS: dict[str, Respond] = {
    **{path: respond for path, (respond, *_) in {**BROKEN, **REDIRECTS}.items()},
    **SLOW,
    "to-good": _redirect("http://other.test:$port/good"),
}


@dataclass
class Internet:
    """The running sites. `hasty_port` answers before it is asked, `closed_port` is nobody's. `dialled`: (host, port) of every connection that anything in this process began for an image."""

    names: Names
    port: int = 0
    tls_port: int = 0
    closed_port: int = 0
    hasty_port: int = 0
    files: dict[str, bytes] = field(default_factory=lambda: {"good": plain()})
    dialled: list[tuple[str, int]] = field(default_factory=list)
    canaries: list[Site] = field(default_factory=list)

    @property
    def ports(self) -> list[int]:
        """Those that images may come from."""
        return [self.port, self.tls_port, self.closed_port, self.hasty_port, 80, 443]

    def url(self, text: str, number: int = 0) -> str:
        """`text` with the ports and the number that it has places for."""
        places = {
            "$port": self.port,
            "$tls": self.tls_port,
            "$closed": self.closed_port,
            "$hasty": self.hasty_port,
            "$odd": 22,
            "$n": number,
        }
        for place, value in places.items():
            text = text.replace(place, str(value))
        return text

    async def _respond(self, visit: Visit) -> None:
        path = visit.request.split(b" ", 2)[1].decode().partition("?")[0].removeprefix("/")
        if path in self.files:
            await visit.send(answer(self.files[path]))
        else:
            await _PATHS[path](visit)

    async def run(self, tls: ssl.SSLContext, ready: threading.Event, stop: asyncio.Event) -> None:
        """Serve until told to stop."""
        self.port, self.tls_port, self.closed_port, self.hasty_port = (free_port() for _ in range(4))
        async with AsyncExitStack() as stack, await asyncio.start_server(_answer_at_once, PUBLIC, self.hasty_port):
            for address in (PUBLIC, OTHER):
                await stack.enter_async_context(open_site(self._respond, address, self.port))
            await stack.enter_async_context(open_site(sends(answer(plain())), PUBLIC, self.tls_port, tls))
            for port in (self.port, self.tls_port):
                self.canaries += await stack.enter_async_context(open_canaries(port))
            ready.set()
            await stop.wait()


@contextmanager
def open_internet(folder: Path) -> Iterator[Internet]:
    """A running `Internet`, in a thread of its own."""
    internet, tls, ready, stop = Internet(Names()), _certificate(folder), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(internet.run(tls, ready, stop),), daemon=True)
    dial = httpcore.AnyIOBackend.connect_tcp

    async def noted(self: Any, host: str, port: int, *rest: Any, **options: Any) -> Any:
        internet.dialled.append((host, port))
        if host not in (PUBLIC, OTHER):
            raise httpcore.ConnectError("the test has no other internet")
        return await dial(self, host, port, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore.AnyIOBackend, "connect_tcp", noted)
        thread.start()
        try:
            assert ready.wait(20)
            yield internet
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(20)
            assert not thread.is_alive(), "a connection to a site is still open"
            loop.close()


def _certificate(folder: Path) -> ssl.SSLContext:
    """Of a server that nobody has vouched for."""
    x509 = pytest.importorskip("cryptography.x509", reason="makes the certificate")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "img.test")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    certificate = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1)).sign(key, hashes.SHA256())
    path = folder / "server.pem"
    pem = serialization.Encoding.PEM
    path.write_bytes(certificate.public_bytes(pem))
    with path.open("ab") as file:
        file.write(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context
