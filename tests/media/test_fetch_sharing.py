"""What fetches of one tenant, and of several, do to each other: slots, and the cache of those who share one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from server.clock import ManualClock
from server.context import MediaLimits, Tenant
from server.errors import InvalidRequestError, MediaError, RateLimitError
from server.media.addresses import Address
from server.media.fetch import Fetcher
from server.media.slots import MAX_WAITING
from tests.media.sites import (
    FETCHING,
    OTHER,
    PUBLIC,
    Names,
    Site,
    Visit,
    answer,
    get,
    names,
    open_fetcher,
    open_site,
    sends,
    until,
)

OTHER_TENANT = Tenant("other", media=MediaLimits(remote_urls=True))


class Gate:
    """A site's answers wait here."""

    def __init__(self, data: bytes = b"") -> None:
        self.opened = asyncio.Event()
        self.data = data or answer(b"x")

    async def __call__(self, visit: Visit) -> None:
        await self.opened.wait()
        await visit.send(self.data)


@asynccontextmanager
async def open_gated(**settings: Any) -> AsyncIterator[tuple[Gate, Site, Fetcher, str]]:
    gate = Gate()
    async with open_site(gate) as site, open_fetcher([site.port], names(img=PUBLIC), **settings) as fetcher:
        try:
            yield gate, site, fetcher, f"http://img.test:{site.port}/"
        finally:
            gate.opened.set()


async def test_a_tenant_has_so_many_at_once_and_others_have_their_own() -> None:
    async with open_gated(max_fetches_per_tenant=2) as (gate, site, fetcher, url), asyncio.TaskGroup() as tasks:
        mine = [tasks.create_task(get(fetcher, url)) for _ in range(5)]
        await until(lambda: site.num_connections == 2)
        theirs = tasks.create_task(get(fetcher, url, OTHER_TENANT))
        await until(lambda: site.num_connections == 3)
        for _ in range(50):
            await asyncio.sleep(0)
        assert 3 == site.num_connections
        gate.opened.set()
        assert [b"x"] * 6 == await asyncio.gather(*mine, theirs)
        assert 0 == len(fetcher._slots)


async def test_the_wait_for_others_of_the_same_tenant_does_not_count() -> None:
    """Each is asked for, and each has all of its time: a host that was not asked is not said to be slow."""
    async with open_gated(max_fetches_per_tenant=1, fetch_timeout_s=0.1) as (_, site, fetcher, url):
        outcomes = await asyncio.gather(*(get(fetcher, url) for _ in range(3)), return_exceptions=True)

        assert [MediaError] * 3 == [type(outcome) for outcome in outcomes]
        assert 3 == site.num_connections
        assert 0 == len(fetcher._slots)


async def test_so_many_of_a_tenant_may_wait() -> None:
    async with open_gated(max_fetches_per_tenant=2) as (gate, site, fetcher, url), asyncio.TaskGroup() as tasks:
        under_way = [tasks.create_task(get(fetcher, url)) for _ in range(2 + MAX_WAITING)]
        await until(lambda: site.num_connections == 2)
        with pytest.raises(RateLimitError, match=f"`{MAX_WAITING}` images of this tenant wait") as caught:
            await get(fetcher, url)
        assert ("image_queue_full", 5) == (caught.value.reason, caught.value.retry_after_s)
        theirs = tasks.create_task(get(fetcher, url, OTHER_TENANT))
        await until(lambda: site.num_connections == 3)
        for task in under_way[5:]:
            task.cancel()
        gate.opened.set()
        assert b"x" == await theirs


async def test_one_who_waits_and_leaves_takes_no_slot_along() -> None:
    async with open_gated(max_fetches_per_tenant=1) as (gate, site, fetcher, url):
        first = asyncio.ensure_future(get(fetcher, url))
        await until(lambda: site.num_connections == 1)
        waiting = asyncio.ensure_future(get(fetcher, url))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.opened.set()
        assert b"x" == await first
        assert b"x" == await get(fetcher, url)


async def test_a_lookup_without_end_costs_its_own_tenant_a_slot_and_no_other() -> None:
    ends = asyncio.Event()

    async def resolve(host: str, port: int) -> list[Address]:
        if host == "slow.test":
            await ends.wait()
        return await Names({host: [[PUBLIC]]})(host, port)

    async with (
        open_site(sends(answer(b"x"))) as site,
        open_fetcher([site.port], resolve, max_fetches_per_tenant=1, fetch_timeout_s=0.2) as fetcher,
    ):
        slow, fast = f"http://slow.test:{site.port}/", f"http://fast.test:{site.port}/"
        with pytest.raises(MediaError, match=r"slow\.test"):
            await get(fetcher, slow)
        waiting = asyncio.ensure_future(get(fetcher, fast))
        assert b"x" == await get(fetcher, fast, OTHER_TENANT)
        assert not waiting.done()
        ends.set()
        assert b"x" == await waiting


async def test_nothing_is_kept_unless_wanted() -> None:
    async with open_site(sends(answer(b"x"))) as site, open_fetcher([site.port]) as fetcher:
        for _ in range(2):
            await get(fetcher, f"http://img.test:{site.port}/")
    assert 2 == site.num_connections


@asynccontextmanager
async def open_caching(
    *headers: str, clock: ManualClock | None = None, **settings: Any
) -> AsyncIterator[tuple[Site, Fetcher, str]]:
    async with (
        open_site(sends(answer(b"x" * 100, "200 OK", *headers))) as site,
        open_fetcher([site.port], names(img=PUBLIC), clock, **{"url_cache_bytes": 1000, **settings}) as fetcher,
    ):
        yield site, fetcher, f"http://img.test:{site.port}/"


async def test_the_cache_serves_its_scope_alone_for_its_time() -> None:
    clock = ManualClock()
    async with open_caching(clock=clock, url_cache_ttl_s=60.0) as (site, fetcher, url):
        for _ in range(2):
            assert b"x" * 100 == await get(fetcher, url)
            assert b"x" * 100 == await get(fetcher, url + "#part", OTHER_TENANT)
        assert 1 == site.num_connections
        assert b"x" * 100 == await get(fetcher, url, scope=b"another group")
        assert 2 == site.num_connections
        await get(fetcher, url + "?other")
        assert 3 == site.num_connections
        clock.advance(59.9)
        await get(fetcher, url)
        assert 3 == site.num_connections
        clock.advance(0.1)
        await get(fetcher, url)
        assert 4 == site.num_connections


@pytest.mark.parametrize("control", ["no-store", "private", "max-age=60, No-Cache"])
async def test_what_is_not_to_be_kept(control: str) -> None:
    async with open_caching(f"Cache-Control: {control}") as (site, fetcher, url):
        for _ in range(2):
            await get(fetcher, url)
        assert 2 == site.num_connections


async def test_what_does_not_fit_is_not_kept() -> None:
    async with open_caching(url_cache_bytes=99) as (site, fetcher, url):
        for _ in range(2):
            await get(fetcher, url)
        assert 2 == site.num_connections


@pytest.mark.parametrize(
    ("media", "error", "says"),
    [
        (MediaLimits(), InvalidRequestError, "remote_urls"),
        (MediaLimits(remote_urls=True, denied_hosts=("img.test",)), InvalidRequestError, "are denied"),
        (MediaLimits(remote_urls=True, denied_hosts=(".other.test",)), MediaError, "`other.test` are denied"),
        (MediaLimits(remote_urls=True, allowed_hosts=("img.test",)), MediaError, "`other.test` is none of the hosts"),
    ],
)
async def test_a_tenant_gets_from_the_cache_only_what_it_could_fetch(
    media: MediaLimits, error: type[Exception], says: str
) -> None:
    async with (
        open_site(sends(answer(b"there")), OTHER) as other,
        open_site(sends(answer(b"", "302 Found", f"Location: http://other.test:{other.port}/"))) as site,
    ):
        resolver = names(img=PUBLIC, other=OTHER)
        async with open_fetcher([site.port, other.port], resolver, max_redirects=1, url_cache_bytes=1000) as fetcher:
            url = f"http://img.test:{site.port}/"
            assert b"there" == await get(fetcher, url)
            with pytest.raises(error, match=says):
                await get(fetcher, url, Tenant("strict", media=media))
            with pytest.raises(MediaError, match="larger than the `4` bytes"):
                await get(fetcher, url, max_bytes=4)
            assert b"there" == await get(fetcher, url)
    assert 1 == site.num_connections == other.num_connections


async def test_a_file_outlives_its_place_in_the_cache_and_its_other_users() -> None:
    async with open_caching(url_cache_bytes=150) as (site, fetcher, url):
        payloads = [await fetcher.fetch(url, tenant=FETCHING, max_bytes=100, scope=b"s") for _ in range(2)]
        await get(fetcher, url + "?other")  # takes the place
        payloads[0].file.close()
        assert b"x" * 100 == payloads[1].read()
        await fetcher.close()
        assert b"x" * 100 == payloads[1].read()
        payloads[1].file.close()
        assert 2 == site.num_connections


@asynccontextmanager
async def open_shared(data: bytes = b"", **settings: Any) -> AsyncIterator[tuple[Gate, Site, Fetcher, str]]:
    async with open_gated(url_cache_bytes=1000, **settings) as (gate, site, fetcher, url):
        gate.data = data or gate.data
        yield gate, site, fetcher, url


async def test_many_at_once_are_one_fetch() -> None:
    async with open_shared(max_fetches_per_tenant=2) as (gate, site, fetcher, url), asyncio.TaskGroup() as tasks:
        fetches = [tasks.create_task(get(fetcher, url, tenant)) for tenant in (FETCHING, OTHER_TENANT) * 10]
        await until(lambda: site.num_connections == 1)
        gate.opened.set()
        assert [b"x"] * 20 == await asyncio.gather(*fetches)
        assert 1 == site.num_connections


@pytest.mark.parametrize("leaver", [0, 1])
async def test_one_that_leaves_takes_nobody_along(leaver: int) -> None:
    async with open_shared() as (gate, site, fetcher, url):
        fetches = [asyncio.ensure_future(get(fetcher, url)) for _ in range(3)]
        await until(lambda: len(site.requests) == 1)
        fetches[leaver].cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetches[leaver]
        gate.opened.set()
        assert [b"x"] * 2 == await asyncio.gather(*(fetch for fetch in fetches if not fetch.cancelled()))
        assert (2 if leaver == 0 else 1) == site.num_connections


async def test_the_first_ones_bounds_are_its_own() -> None:
    async with open_shared(answer(b"x" * 50)) as (gate, _, fetcher, url):
        fetches = [asyncio.ensure_future(get(fetcher, url, max_bytes=most)) for most in (10, 100, 20)]
        await asyncio.sleep(0)
        gate.opened.set()
        small, large, smaller = await asyncio.gather(*fetches, return_exceptions=True)
        assert isinstance(small, MediaError)
        assert "larger than the `10` bytes" in small.message
        assert b"x" * 50 == large
        assert isinstance(smaller, MediaError)
        assert "larger than the `20` bytes" in smaller.message


async def test_failures_are_not_kept() -> None:
    async with open_shared(answer(b"", "404 No")) as (gate, site, fetcher, url):
        gate.opened.set()
        with pytest.raises(MediaError, match="404"):
            await get(fetcher, url)
        gate.data = answer(b"now")
        assert b"now" == await get(fetcher, url)
        assert 2 == site.num_connections
