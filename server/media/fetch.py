"""Images from URLs that clients sent, fetched so that clients reach nothing through the gateway that they could not reach alone.

Role: first half of the way of a remote image, before it is decoded; called by `loader.py`.
Invariant: a name is resolved once for each hop, all its addresses are checked, and one of those checked is connected to. One
deadline is over names, connections and bodies. The wait for others of the same tenant is no host's fault, and bounded by number.
Must not: read proxies from the environment, send cookies, credentials or headers of clients, or follow redirects unchecked.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin

import httpx

from server.clock import Clock
from server.context import Tenant
from server.errors import InvalidRequestError, MediaError
from server.media.addresses import Address, AddressRule, unmapped
from server.media.exchange import Answer, ask, receive, too_large
from server.media.hosts import is_listed
from server.media.resolver import Resolve, resolve
from server.media.slots import Slot, Slots
from server.media.url_cache import Fetched, UrlCache
from server.media.urls import ImageUrl, parse_url
from server.media_sections import MediaSettings
from server.payload import Payload

_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_NOT_KEPT: Final = ("no-store", "no-cache", "private")


@dataclass(slots=True, frozen=True)
class _Wish:
    """Who wants a URL, and how large it may be."""

    tenant: Tenant
    max_bytes: int


class Fetcher:
    """Fetches images for all tenants. For one event loop."""

    def __init__(
        self, settings: MediaSettings, clock: Clock, resolve: Resolve = resolve, tls: ssl.SSLContext | None = None
    ) -> None:
        """`tls`: how servers are verified; None for the authorities that certifi and the system trust."""
        self._settings = settings
        self._rule = AddressRule(settings.allowed_networks)
        self._resolve = resolve
        self._tls = tls
        self._slots = Slots(settings.max_fetches_per_tenant)
        self._lookups: set[asyncio.Future[list[Address]]] = set()
        self._cache: UrlCache | None = None
        if settings.url_cache_bytes:
            self._cache = UrlCache(settings.url_cache_bytes, settings.url_cache_ttl_s, clock)

    async def fetch(self, url: str, *, tenant: Tenant, max_bytes: int, scope: bytes) -> Payload:
        """The file at `url`, of at most `max_bytes`; the caller closes it. `scope`: the cache group, as nobody else can spell it.

        Raises `InvalidRequestError` for what is wrong with the URL itself, `MediaError` for what came of asking for it, and
        `RateLimitError` where too many of the tenant's wait; all without `param`.
        """
        wanted = parse_url(url, ports=self._settings.ports)
        if not tenant.media.remote_urls:
            raise InvalidRequestError(
                "image URLs are not fetched for this tenant; send the image as a base64 `data:` URL, "
                f"or have `tenants.{tenant.name}.media.remote_urls` set to `allow`"
            )
        self._check(wanted, tenant)
        return await self._fetch(wanted, _Wish(tenant, max_bytes), scope)

    async def close(self) -> None:
        """Forget what is kept, and wait for nothing that still runs."""
        if self._cache is not None:
            self._cache.clear()
        lookups = list(self._lookups)
        for lookup in lookups:
            lookup.cancel()
        await asyncio.gather(*lookups, return_exceptions=True)

    async def _fetch(self, url: ImageUrl, wish: _Wish, scope: bytes) -> Payload:
        if self._cache is None:
            file = (await self._load(url, wish)).file
            return Payload(file, 0, file.num_bytes)
        fetched, is_own = await self._cache.get((scope, url.text), lambda: self._load(url, wish))
        if not is_own:
            _check_shared(fetched, wish)
        return Payload(fetched.file.duplicate(), 0, fetched.file.num_bytes)

    async def _load(self, url: ImageUrl, wish: _Wish) -> Fetched:
        slot = await self._slots.take(wish.tenant.name)
        timeout_s = self._settings.fetch_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._follow(url, wish, slot, asyncio.get_running_loop().time() + timeout_s)
        except TimeoutError:
            raise MediaError(
                f"the image at `{url.host_name}` was not there within `{timeout_s:g}` s; send a smaller one, or base64"
            ) from None
        finally:
            slot.let_go()

    async def _follow(self, url: ImageUrl, wish: _Wish, slot: Slot, deadline_s: float) -> Fetched:
        """`deadline_s`: on the loop's clock."""
        hosts = [url.host_name]
        while True:
            addresses = await self._addresses(url, slot)
            tls = await self._verification() if url.scheme == "https" else None
            async with ask(url, addresses, tls, deadline_s) as answer:
                if answer.status not in _REDIRECTS:
                    _check_answer(answer)
                    file = await receive(answer, wish.max_bytes)
                    return Fetched(file, tuple(hosts), _may_be_kept(answer))
                if len(hosts) > self._settings.max_redirects:
                    raise self._too_many_redirects(url.host_name, answer.status)
                url = self._next(url, answer, wish.tenant)
                hosts.append(url.host_name)

    def _check(self, url: ImageUrl, tenant: Tenant) -> None:
        """Raises `InvalidRequestError` for a host that this tenant, or nobody, may have images from, as far as the URL shows."""
        if (wrong := _wrong_with_host(url.host_name, tenant)) is not None:
            raise InvalidRequestError(f"{wrong}; use another host, or send base64")
        if not isinstance(url.host, str) and not self._rule.permits(url.host):
            raise InvalidRequestError(f"`{url.host}` is not a public address; use a public one, or send base64")

    async def _addresses(self, url: ImageUrl, slot: Slot) -> Sequence[Address]:
        """Where to connect to, all checked. The lookup has the slot until it is over, though nobody may wait for it any more."""
        if not isinstance(url.host, str):
            return [unmapped(url.host)]
        lookup = asyncio.ensure_future(self._resolve(url.host, url.port))
        self._lookups.add(lookup)
        slot.hold()

        def over(lookup: asyncio.Future[list[Address]]) -> None:
            self._lookups.discard(lookup)
            slot.let_go()
            if not lookup.cancelled():
                lookup.exception()  # seen, though nobody may have waited

        lookup.add_done_callback(over)
        try:
            found = await asyncio.shield(lookup)
        except OSError:
            found = []
        if not found or not all(self._rule.permits(address) for address in found):
            # One answer for both, or names of the network that we stand in could be told from names that there are none of.
            raise MediaError(f"`{url.host}` has no address that is public; check the URL, use another host, or send base64")
        return [unmapped(address) for address in found]

    async def _verification(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = await asyncio.to_thread(_trusted)
        return self._tls

    def _next(self, url: ImageUrl, answer: Answer, tenant: Tenant) -> ImageUrl:
        """Where a redirect leads to, checked as the first URL was."""
        location = answer.headers.get("location", "")
        try:
            if not location.isascii() or not location.isprintable() or not location:
                raise InvalidRequestError("its `Location` is no URL")
            found = parse_url(urljoin(url.text, location), ports=self._settings.ports)
            self._check(found, tenant)
        except InvalidRequestError as error:
            raise _bad_redirect(url.host_name, error.message) from error
        except ValueError:
            raise _bad_redirect(url.host_name, "its `Location` is no URL") from None
        if url.scheme == "https" and found.scheme == "http":
            raise _bad_redirect(url.host_name, "it leads from https to http")
        return found

    def _too_many_redirects(self, host: str, status: int) -> MediaError:
        most = self._settings.max_redirects
        if most == 0:
            return MediaError(f"`{host}` redirects (status `{status}`), which is not followed; send the URL that it leads to")
        return MediaError(f"`{host}` redirects once more after `{most}` redirects; send the URL that it leads to")


def _wrong_with_host(host: str, tenant: Tenant) -> str | None:
    media = tenant.media
    if is_listed(host, media.denied_hosts):
        return f"images from `{host}` are denied to this tenant"
    if media.allowed_hosts and not is_listed(host, media.allowed_hosts):
        return f"`{host}` is none of the hosts that this tenant may have images from"
    return None


def _check_shared(fetched: Fetched, wish: _Wish) -> None:
    """What was fetched for another request is this one's only if this one would have got it."""
    for host in fetched.hosts:
        if (wrong := _wrong_with_host(host, wish.tenant)) is not None:
            raise _bad_redirect(fetched.hosts[0], wrong)
    if fetched.file.num_bytes > wish.max_bytes:
        raise too_large(fetched.hosts[0], wish.max_bytes)


def _check_answer(answer: Answer) -> None:
    if answer.status != 200:
        raise MediaError(
            f"`{answer.host}` has answered with status `{answer.status}`, not an image; check the URL, or send base64"
        )
    encoding = answer.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise MediaError(f"`{answer.host}` compresses the image with a `Content-Encoding`, unasked; send base64 instead")


def _may_be_kept(answer: Answer) -> bool:
    control = answer.headers.get("cache-control", "").lower()
    return not any(word in control for word in _NOT_KEPT)


def _bad_redirect(host: str, why: str) -> MediaError:
    return MediaError(f"`{host}` redirects to where images are not fetched from: {why}")


def _trusted() -> ssl.SSLContext:
    context = httpx.create_ssl_context(trust_env=False)
    context.load_default_certs()
    return context
