"""Redirects: off unless the operator wants them, and each hop is checked as the first URL is."""

from __future__ import annotations

import pytest

from server.context import MediaLimits, Tenant
from server.errors import MediaError
from tests.media.sites import (
    FETCHING,
    OTHER,
    PUBLIC,
    Names,
    Respond,
    Visit,
    answer,
    get,
    names,
    open_canaries,
    open_fetcher,
    open_site,
    sends,
)


def leads_to(location: str, status: str = "302 Found") -> bytes:
    return answer(b"secret", status, f"Location: {location}")


def by_path(**answers: bytes) -> Respond:
    async def respond(visit: Visit) -> None:
        await visit.send(answers[visit.request.split()[1].decode().strip("/").partition("?")[0].replace("/", "_")])

    return respond


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 Other", "307 Temporary", "308 Permanent"])
@pytest.mark.parametrize(
    "location", ["http://other.test:{}/b", "//other.test:{}/b", "/b", "b", "?x", "HTTP://OTHER.test.:{}/b#part", "./../b"]
)
async def test_a_redirect_is_followed(status: str, location: str) -> None:
    resolver = names(img=PUBLIC, other=PUBLIC)
    site_answers = {"b": answer(b"the image")}

    async def respond(visit: Visit) -> None:
        path = visit.request.split()[1]
        await visit.send(site_answers["b"] if path in (b"/b", b"/a?x") else leads_to(location.format(site.port), status))

    async with open_site(respond) as site, open_fetcher([site.port], resolver, max_redirects=1) as fetcher:
        assert b"the image" == await get(fetcher, f"http://img.test:{site.port}/a")

    assert 2 == site.num_connections == len(resolver.asked)


BAD = [
    ("http://127.0.0.1:{}/", "`127.0.0.1` is not a public address"), ("http://2130706433:{}/", "`127.0.0.1` is not a public"),
    ("http://0x7f.1:{}/", "not a public"), ("http://[::1]:{}/", "not a public"), ("http://[::ffff:127.0.0.1]:{}/", "not a public"),
    ("//127.0.0.1:{}/", "not a public"), ("http://169.254.169.254:{}/latest/meta-data", "not a public"),
    ("http://private.test:{}/", "`private.test` has no address that is public"), ("http://mixed.test:{}/", "no address that is public"),
    ("http://gone.test:{}/", "has no address that is public"), ("http://127.0.0.1:22/", "port `22`"), ("http://img.test/", "port `80`"),
    ("http://u:hunter2@img.test:{}/", "credentials"), ("file:///etc/passwd", "`file:` URLs"), ("gopher://127.0.0.1:{}/", "`gopher:` URLs"),
    ("data:image/png;base64,AAAA", "`data:` URLs"), ("", "`Location` is no URL"), ("http://[", "is no URL"),
    ("http://a\tb/", "is no URL"), ("http://b\u00fccher.test:{}/", "is no URL"), ("http://img.test:{}\\@127.0.0.1/", "backslashes"),
    ("http://denied.test:{}/", "are denied to this tenant"), ("http://a.b.denied.test:{}/", "are denied"),
    ("http://elsewhere.example:{}/", "none of the hosts"), ("/" + "x" * 9000, "longer than"),
]  # fmt: skip


@pytest.mark.parametrize(("location", "says"), BAD)
async def test_where_redirects_must_not_lead(location: str, says: str) -> None:
    tenant = Tenant(
        "a", media=MediaLimits(remote_urls=True, allowed_hosts=(".test", "127.0.0.1"), denied_hosts=(".denied.test",))
    )
    if says.endswith("address") or "not a public" in says:  # without a list, as the address would be refused by it
        tenant = FETCHING
    resolver = names(img=PUBLIC, private="127.0.0.1", mixed=f"{PUBLIC} ::1", denied=PUBLIC)

    async def respond(visit: Visit) -> None:
        await visit.send(leads_to(location.format(site.port)))

    async with open_site(respond) as site, open_canaries(site.port) as canaries:
        async with open_fetcher([site.port], resolver, max_redirects=3) as fetcher:
            with pytest.raises(MediaError) as caught:
                await get(fetcher, f"http://img.test:{site.port}/a", tenant)

        assert [0, 0, 0] == [canary.num_connections for canary in canaries]
    assert says in caught.value.message
    assert "hunter2" not in caught.value.message
    assert 1 == site.num_connections


async def test_each_hop_is_resolved_once_and_anew() -> None:
    resolver = Names({"img.test": [[PUBLIC], ["127.0.0.1"]]})
    async with open_site(by_path(a=leads_to("/b"), b=answer(b"x"))) as site, open_canaries(site.port) as canaries:
        async with open_fetcher([site.port], resolver, max_redirects=1) as fetcher:
            with pytest.raises(MediaError, match="no address that is public"):
                await get(fetcher, f"http://img.test:{site.port}/a")

        assert [0, 0, 0] == [canary.num_connections for canary in canaries]
    assert ["img.test"] * 2 == resolver.asked
    assert 1 == site.num_connections


@pytest.mark.parametrize("most", [1, 3])
async def test_so_many_redirects_and_no_more(most: int) -> None:
    async with open_site(by_path(a=leads_to("/a"))) as site, open_fetcher([site.port], max_redirects=most) as fetcher:
        with pytest.raises(MediaError, match=f"redirects once more after `{most}` redirects"):
            await get(fetcher, f"http://img.test:{site.port}/a")

    assert most + 1 == site.num_connections


async def test_one_deadline_for_all_hops() -> None:
    async def respond(visit: Visit) -> None:
        if b"/b" in visit.request:
            await visit.hang()
        await visit.send(leads_to("/b"))

    async with open_site(respond) as site, open_fetcher([site.port], max_redirects=1, fetch_timeout_s=0.1) as fetcher:
        with pytest.raises(MediaError, match=r"was not there within `0\.1` s"):
            await get(fetcher, f"http://img.test:{site.port}/a")


async def test_the_hop_after_goes_to_its_own_address() -> None:
    async with (
        open_site(sends(answer(b"there")), OTHER) as other,
        open_site(sends(leads_to(f"http://other.test:{other.port}/"))) as site,
        open_fetcher([site.port, other.port], names(img=PUBLIC, other=OTHER), max_redirects=1) as fetcher,
    ):
        assert b"there" == await get(fetcher, f"http://img.test:{site.port}/")
    assert b"Host: other.test:" in other.requests[0]
