"""Fetching: what is asked for, what servers may answer, and that nothing private is ever connected to."""

from __future__ import annotations

import asyncio

import pytest

from server.clock import ManualClock
from server.context import MediaLimits, Tenant
from server.errors import InvalidRequestError, MediaError
from server.media.fetch import Fetcher
from server.media_sections import MediaSettings
from tests.media.sites import (
    FETCHING,
    OTHER,
    PUBLIC,
    SCOPE,
    Names,
    answer,
    get,
    names,
    open_canaries,
    open_fetcher,
    open_site,
    sends,
    until,
)

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


async def test_an_image_is_fetched_and_nothing_is_told_of_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with open_site(sends(answer(b"\x89PNG", "200 OK", "Set-Cookie: a=b"))) as site, open_fetcher([site.port]) as fetcher:
        for _ in range(2):
            assert b"\x89PNG" == await get(fetcher, f"http://IMG.test.:{site.port}/a%2Fb?sig=%2b+x#part")

    expected = (
        f"GET /a%2Fb?sig=%2b+x HTTP/1.1\r\nHost: img.test:{site.port}\r\nUser-Agent: k3-gateway\r\nAccept: image/*\r\n"
        "Accept-Encoding: identity\r\nConnection: close\r\n\r\n"
    )
    assert [expected.encode()] * 2 == site.requests
    assert 2 == site.num_connections


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (answer(b""), b""),
        (OK + b"\r\nto the end", b"to the end"),
        (CHUNKED + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: x\r\n\r\n", b"abcde"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + answer(b"x"), b"x"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"old"),
        (answer(b"x", "200 OK", "Content-Encoding: identity", "Content-Type: text/html"), b"x"),
        (answer(bytes(range(256)) * 4000), bytes(range(256)) * 4000),
        (CHUNKED + b"1\r\nx\r\n" * 3000 + b"0\r\n\r\n", b"x" * 3000),
    ],
)
async def test_forms_of_answers(data: bytes, body: bytes) -> None:
    async with open_site(sends(data)) as site, open_fetcher([site.port]) as fetcher:
        assert body == await get(fetcher, f"http://img.test:{site.port}/", max_bytes=1_024_000)


LITERALS = [
    "127.0.0.1", "127.9.9.9", "[::1]", "2130706433", "0x7f.1", "017700000001", "127.1", "0", "0x7f000001", "１２７.0.0.1", "127。0.0.1",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[::]", "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "10.0.0.1", "192.168.1.1",
    "172.16.0.1", "100.64.0.1", "169.254.169.254", "0xa9fea9fe", "[fd00:ec2::254]", "100.100.100.200", "168.63.129.16", "224.0.0.1",
    "255.255.255.255", "[ff02::1]", "[fe80::1]", "[fec0::1]", "[2001:db8::1]", "127.7.8.1",
]  # fmt: skip
ADDRESSES = [
    "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "::", "0.0.0.0", "64:ff9b::7f00:1", "64:ff9b:1::7f00:1", "2002:7f00:1::",
    "2001:0:7f00:1::1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "100.64.0.1", "169.254.169.254", "fd00:ec2::254", "100.100.100.200",
    "192.0.0.192", "168.63.129.16", "224.0.0.1", "ff02::1", "fe80::1", "fe80::1%lo", "fec0::1", "198.18.0.1", "2001:db8::1", "240.0.0.1",
]  # fmt: skip


async def test_private_addresses_in_urls() -> None:
    resolver = Names({})
    async with (
        open_site(sends(answer())) as site,
        open_canaries(site.port) as canaries,
        open_fetcher([site.port], resolver) as fetcher,
    ):
        for host in LITERALS:
            with pytest.raises(InvalidRequestError, match="is not a public address"):
                await get(fetcher, f"http://{host}:{site.port}/")

        assert [0] * 4 == [canary.num_connections for canary in (site, *canaries)]
    assert [] == resolver.asked


@pytest.mark.parametrize(
    "among", ["{}", f"{PUBLIC} {{}}", f"{{}} {PUBLIC}", f"{PUBLIC} {OTHER} {PUBLIC} {OTHER} {OTHER} {OTHER} {{}}"]
)
async def test_names_of_private_addresses(among: str) -> None:
    async with open_site(sends(answer())) as site, open_canaries(site.port) as canaries:
        for address in ADDRESSES:
            async with open_fetcher([site.port], names(img=among.format(address))) as fetcher:
                with pytest.raises(MediaError, match=r"`img\.test` has no address that is public") as caught:
                    await get(fetcher, f"http://img.test:{site.port}/")
            assert address not in caught.value.message

        assert [0] * 4 == [canary.num_connections for canary in (site, *canaries)]


async def test_a_name_that_becomes_private_is_asked_for_once_and_its_first_address_connected_to() -> None:
    resolver = Names({"img.test": [[PUBLIC], ["127.0.0.1"]]})
    async with open_site(sends(answer(b"public"))) as site, open_canaries(site.port) as canaries:
        async with open_fetcher([site.port], resolver) as fetcher:
            assert b"public" == await get(fetcher, f"http://img.test:{site.port}/")
            assert ["img.test"] == resolver.asked
            with pytest.raises(MediaError, match="no address that is public"):
                await get(fetcher, f"http://img.test:{site.port}/")

        assert [0, 0, 0] == [canary.num_connections for canary in canaries]
    assert 1 == site.num_connections


async def test_a_mapped_public_address_is_connected_to_as_what_it_means() -> None:
    async with open_site(sends(answer(b"public"))) as site, open_fetcher([site.port], names(img=f"::ffff:{PUBLIC}")) as fetcher:
        assert b"public" == await get(fetcher, f"http://img.test:{site.port}/")
        assert b"public" == await get(fetcher, f"http://[::ffff:{PUBLIC}]:{site.port}/")
        assert b"public" == await get(fetcher, f"http://{PUBLIC}:{site.port}/")


async def test_an_address_that_takes_no_connection_is_followed_by_the_next() -> None:
    async with (
        open_site(sends(answer(b"here"))) as site,
        open_fetcher([site.port], names(img=f"127.7.7.200 {PUBLIC}")) as fetcher,
    ):
        assert b"here" == await get(fetcher, f"http://img.test:{site.port}/")


async def test_nobody_listens() -> None:
    async with open_site(sends(answer())) as site, open_fetcher([site.port], names(img="127.7.7.200 127.7.7.201")) as fetcher:
        with pytest.raises(MediaError, match=rf"`img\.test` can't be connected to at port `{site.port}`"):
            await get(fetcher, f"http://img.test:{site.port}/")


@pytest.mark.parametrize("resolver", [Names({}), names(img="")])
async def test_no_such_name(resolver: Names) -> None:
    async with open_fetcher([80], resolver) as fetcher:
        with pytest.raises(MediaError, match=r"`img\.test` has no address that is public"):
            await get(fetcher, "http://img.test/")


async def test_the_systems_resolver() -> None:
    """`localhost` is all that it surely knows here."""
    async with open_site(sends(answer(b"here")), "127.0.0.1") as site:
        url = f"http://localhost:{site.port}/"
        fetcher = Fetcher(MediaSettings(ports=[site.port]), ManualClock())
        with pytest.raises(MediaError, match="no address that is public"):
            await get(fetcher, url)
        allowing = Fetcher(MediaSettings(ports=[site.port], allowed_networks=["127.0.0.1/32", "::1/128"]), ManualClock())

        assert b"here" == await get(allowing, url)
    assert 1 == site.num_connections


@pytest.mark.parametrize(
    ("tenant", "url", "says"),
    [
        (Tenant("acme"), "http://img.test/", "have `tenants.acme.media.remote_urls` set to `allow`"),
        (Tenant("acme"), "file:///etc/passwd", "`file:` URLs are not fetched"),
        (FETCHING, "http://img.test:8080/", "port `8080`"),
        (FETCHING, "http://u:p@img.test/", "credentials"),
        (Tenant("a", media=MediaLimits(remote_urls=True, denied_hosts=(".test",))), "http://img.test/", "are denied"),
        (Tenant("a", media=MediaLimits(remote_urls=True, denied_hosts=("img.test",))), "http://IMG.TEST./", "are denied"),
        (
            Tenant("a", media=MediaLimits(remote_urls=True, allowed_hosts=("other.test",))),
            "http://img.test/",
            "none of the hosts",
        ),
        (
            Tenant("a", media=MediaLimits(remote_urls=True, allowed_hosts=(".test",), denied_hosts=("img.test",))),
            "http://img.test/",
            "are denied",
        ),
    ],
)
async def test_what_the_url_alone_tells(tenant: Tenant, url: str, says: str) -> None:
    resolver = names(img=PUBLIC)
    async with open_fetcher([80, 443], resolver) as fetcher:
        with pytest.raises(InvalidRequestError) as caught:
            await get(fetcher, url, tenant)

    assert says in caught.value.message
    assert [] == resolver.asked


async def test_a_host_that_is_allowed() -> None:
    tenant = Tenant("a", media=MediaLimits(remote_urls=True, allowed_hosts=(".test",), denied_hosts=("evil.test",)))
    async with open_site(sends(answer(b"x"))) as site, open_fetcher([site.port]) as fetcher:
        assert b"x" == await get(fetcher, f"http://img.test:{site.port}/", tenant)


async def test_the_deadline_is_over_names_too() -> None:
    async def never(host: str, port: int) -> list[object]:
        await asyncio.Event().wait()
        raise AssertionError

    async with open_fetcher([80], never, fetch_timeout_s=0.05) as fetcher:
        with pytest.raises(MediaError, match=r"was not there within `0\.05` s"):
            await get(fetcher, "http://img.test/")
        assert 1 == len(fetcher._lookups)
    assert 0 == len(fetcher._lookups)


async def test_a_request_that_ends_ends_its_fetch() -> None:
    async with open_site(sends(OK + b"\r\nx", hangs=True)) as site, open_fetcher([site.port]) as fetcher:
        fetch = asyncio.ensure_future(fetcher.fetch(f"http://img.test:{site.port}/", tenant=FETCHING, max_bytes=9, scope=SCOPE))
        await until(lambda: len(site.requests) == 1)
        fetch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetch
        await until(lambda: site.num_open == 0)

        assert 0 == len(fetcher._slots)
