"""TLS: a server is verified against the name in the URL, though an address is connected to."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest

from server.errors import MediaError
from tests.media.sites import OTHER, PUBLIC, Names, answer, get, names, open_canaries, open_fetcher, open_site, sends

x509 = pytest.importorskip("cryptography.x509", reason="makes the certificates")
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


class Authority:
    """Makes certificates that `trusting` believes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        builder = self._builder(self._name, self._key.public_key(), NOW + DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())

    def trusting(self) -> ssl.SSLContext:
        pem = self._certificate.public_bytes(serialization.Encoding.PEM).decode()
        return ssl.create_default_context(cadata=pem)

    def server(self, *hosts: str, ends: datetime.datetime = NOW + DAY) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(x509.Name([]), key.public_key(), ends)
        alternatives = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        certificate = builder.add_extension(alternatives, critical=True).sign(self._key, hashes.SHA256())
        path = self._folder / "server.pem"
        path.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, ends: datetime.datetime) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        return builder.serial_number(x509.random_serial_number()).not_valid_before(NOW - 10 * DAY).not_valid_after(ends)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize(("certified", "host"), [("img.test", "IMG.test."), ("*.img.test", "a.img.test"), (PUBLIC, PUBLIC)])
async def test_the_name_in_the_url_is_verified_and_sent(authority: Authority, certified: str, host: str) -> None:
    asked: list[str | None] = []
    tls = authority.server(certified)
    tls.sni_callback = lambda connection, name, context: asked.append(name)
    async with (
        open_site(sends(answer(b"x" * 100_000)), tls=tls) as site,
        open_fetcher([site.port], Names({host.lower().removesuffix("."): [[PUBLIC]]}), tls=authority.trusting()) as fetcher,
    ):
        assert b"x" * 100_000 == await get(fetcher, f"https://{host}:{site.port}/")

    assert [None if host == PUBLIC else host.lower().removesuffix(".")] == asked
    assert f"Host: {host.lower().removesuffix('.')}:{site.port}\r\n".encode() in site.requests[0]


@pytest.mark.parametrize("certified", ["other.test", PUBLIC, "img.test.evil.example", "*.img.test"])
async def test_a_certificate_of_another_name(authority: Authority, certified: str) -> None:
    async with (
        open_site(sends(answer(b"secret")), tls=authority.server(certified)) as site,
        open_fetcher([site.port], names(img=PUBLIC), tls=authority.trusting()) as fetcher,
    ):
        with pytest.raises(MediaError, match=r"`img\.test` has no certificate that is valid for this name"):
            await get(fetcher, f"https://img.test:{site.port}/")

    assert [] == site.requests


async def test_a_certificate_that_has_ended(authority: Authority) -> None:
    async with (
        open_site(sends(answer()), tls=authority.server("img.test", ends=NOW - DAY)) as site,
        open_fetcher([site.port], names(img=PUBLIC), tls=authority.trusting()) as fetcher,
    ):
        with pytest.raises(MediaError, match="no certificate that is valid"):
            await get(fetcher, f"https://img.test:{site.port}/")


async def test_an_authority_that_nobody_trusts(authority: Authority) -> None:
    """With the fetcher's own trust, which is in authorities of the internet."""
    async with (
        open_site(sends(answer()), tls=authority.server("img.test")) as site,
        open_fetcher([site.port], names(img=PUBLIC)) as fetcher,
    ):
        with pytest.raises(MediaError, match="no certificate that is valid"):
            await get(fetcher, f"https://img.test:{site.port}/")
        assert fetcher._tls is not None
        assert ssl.CERT_REQUIRED == fetcher._tls.verify_mode
        assert fetcher._tls.check_hostname

    assert [] == site.requests


async def test_a_server_without_tls(authority: Authority) -> None:
    def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 No\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(visit, PUBLIC) as server:
        port = server.sockets[0].getsockname()[1]
        async with open_fetcher([port], names(img=PUBLIC), tls=authority.trusting()) as fetcher:
            with pytest.raises(MediaError, match="can't be connected to"):
                await get(fetcher, f"https://img.test:{port}/")


async def test_a_handshake_without_end(authority: Authority) -> None:
    async with (
        open_site(sends(b"", hangs=True)) as site,
        open_fetcher([site.port], names(img=f"{PUBLIC} {PUBLIC}"), tls=authority.trusting(), fetch_timeout_s=0.2) as fetcher,
    ):
        with pytest.raises(MediaError, match=r"can't be connected to|was not there within `0\.2` s"):
            await get(fetcher, f"https://img.test:{site.port}/")


async def test_an_address_whose_handshake_has_no_end_leaves_time_for_the_next(authority: Authority) -> None:
    async with open_site(sends(answer(b"here")), tls=authority.server("img.test")) as site:
        resolver, trusting = names(img=f"{OTHER} {PUBLIC}"), authority.trusting()
        async with (
            open_site(sends(b"", hangs=True), OTHER, site.port) as silent,
            open_fetcher([site.port], resolver, tls=trusting, fetch_timeout_s=1.0) as fetcher,
        ):
            assert b"here" == await get(fetcher, f"https://img.test:{site.port}/")
    assert 1 == silent.num_connections


async def test_a_redirect_out_of_tls(authority: Authority) -> None:
    async with open_site(sends(answer(b"plain"))) as plain:
        leads = answer(b"", "302 Found", f"Location: http://img.test:{plain.port}/")
        async with open_site(sends(leads), tls=authority.server("img.test")) as site, open_canaries(site.port):
            resolver = names(img=PUBLIC)
            async with open_fetcher([site.port, plain.port], resolver, tls=authority.trusting(), max_redirects=2) as fetcher:
                with pytest.raises(MediaError, match="leads from https to http"):
                    await get(fetcher, f"https://img.test:{site.port}/")

    assert 0 == plain.num_connections
    assert 1 == site.num_connections
