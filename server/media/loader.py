"""The images of one request: from what a client sent to what is known of them.

Role: beside step 4 of a request, before anything is reserved: what an image costs is known only once it is here. Fetching and
decoding are each others' work (`fetch.py`, `pool.py`); here are the bounds of a request, and where each image comes from.
Invariant: every error names the image's part; what was loaded is held by `LoadedImages` and by nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from server.clock import Clock
from server.context import Tenant
from server.errors import GatewayError, InvalidRequestError, MediaError
from server.held import HeldBytes
from server.images import Image, Pixels
from server.media.fetch import Fetcher
from server.media.pool import Bounds, Checked, DecodePool
from server.media.resolver import Resolve
from server.media.resolver import resolve as system_resolve
from server.media_sections import MediaSettings
from server.payload import Payload, PayloadFile
from server.quoting import cut

MAX_GATHERED_BYTES: Final = 1024 * 1024
"""Fetched files of no more are copied into one, on the event loop: a gateway runs out of descriptors before it does of bytes."""

NUM_AT_ONCE: Final = 4
"""Images of one request that are fetched or decoded at the same time."""


class Source(Protocol):
    """Where an image comes from: the path of its part in the request, and a URL, or the name of a payload of the body."""

    @property
    def param(self) -> str: ...
    @property
    def url(self) -> str: ...


class LoadedImages:
    """The images of one request by the paths of their parts. They can be decoded until `close`."""

    def __init__(self, held: HeldBytes, tenant: str) -> None:
        self.by_path: dict[str, Image] = {}
        self._files: list[PayloadFile] = []
        self._gathered: PayloadFile | None = None
        self._num_fetched_bytes = 0
        self._held = held
        self._tenant = tenant

    def keep(self, payload: Payload) -> Payload:
        """Close the payload's file with the rest."""
        self._files.append(payload.file)
        return payload

    def keep_text(self, text: bytes) -> Payload:
        """Keep the base64 of an image."""
        return self._gather(text, is_base64=True)

    def keep_fetched(self, payload: Payload) -> Payload:
        """Keep what was fetched, wherever: it counts as held until it is closed; what came with the body does anyway."""
        num_bytes = payload.num_bytes
        if num_bytes > MAX_GATHERED_BYTES:
            self.keep(payload)
        else:
            with closing(payload.file):
                payload = self._gather(payload.read(), is_base64=False)
        self._num_fetched_bytes += num_bytes
        self._held.take(self._tenant, num_bytes)
        return payload

    def _gather(self, data: bytes, *, is_base64: bool) -> Payload:
        """In the one file that a request has for all that is small."""
        file = self._gathered = self._gathered or PayloadFile()
        offset = file.num_bytes
        file.append(data)
        return self.keep(Payload(file, offset, len(data), is_base64))

    def close(self) -> None:
        """Give the memory back. May be called twice."""
        num_fetched_bytes, self._num_fetched_bytes = self._num_fetched_bytes, 0
        files, self._files = self._files, []
        self._held.give(self._tenant, num_fetched_bytes)
        for file in files:
            file.close()

    def __del__(self) -> None:
        if self._num_fetched_bytes:  # the files close themselves
            self._held.forget(self._tenant, self._num_fetched_bytes)


class _Caps(NamedTuple):
    """The tighter of the gateway's and the tenant's bounds."""

    max_images: int
    max_image_bytes: int
    max_total_bytes: int
    max_pixels: int
    max_total_pixels: int


@dataclass(slots=True)
class _Request:
    """One request whose images are being loaded. `num_bytes` and `num_pixels`: of those that are here."""

    loaded: LoadedImages
    payloads: Mapping[str, Payload]
    tenant: Tenant
    scope: bytes
    caps: _Caps
    turns: asyncio.Semaphore
    num_bytes: int = 0
    num_pixels: int = 0

    def count(self, checked: Checked) -> None:
        """One more is here. Raises `InvalidRequestError` where they are too much together."""
        self.num_bytes += checked.num_bytes
        self.num_pixels += checked.width * checked.height
        for found, most, unit in (
            (self.num_bytes, self.caps.max_total_bytes, "bytes"),
            (self.num_pixels, self.caps.max_total_pixels, "pixels"),
        ):
            if found > most:
                raise InvalidRequestError(
                    f"with it the request's images have `{found}` {unit}, more than `{most}` together; send fewer or smaller"
                )


class MediaLoader:
    """Loads the images of requests.

    `held` counts what was fetched. `on_image` is called with what became of each: `loaded`, `refused` (it may not be), `failed`
    (it could not be). `resolve`: how names become addresses; left out, as the system does it.
    """

    def __init__(
        self,
        settings: MediaSettings,
        clock: Clock,
        held: HeldBytes,
        on_image: Callable[[str], None],
        resolve: Resolve | None = None,
    ) -> None:
        self._settings = settings
        self._held = held
        self._on_image = on_image
        self._fetcher = Fetcher(settings, clock, resolve or system_resolve)
        self._pool = DecodePool(num_workers=settings.workers, timeout_s=settings.decode_timeout_s)

    async def run(self) -> None:
        """Work until cancelled; the decoding processes end with it."""
        try:
            await self._pool.run()
        finally:
            await self._fetcher.close()

    async def load(
        self, sources: Sequence[Source], payloads: Mapping[str, Payload], tenant: Tenant, scope: bytes
    ) -> LoadedImages:
        """All images of a request, each checked. The same URL is loaded once.

        `payloads`: what came with the request, by the names that stand for it. `scope`: what content hashes are kept apart by.
        Raises `InvalidRequestError` for what may not be, `MediaError` for what can't be, each with the path of the part;
        `RateLimitError` and `OverloadedError` where too many images, the tenant's or all, wait already; see `HeldBytes`.
        """
        caps = self._caps(tenant)
        if len(sources) > caps.max_images:
            self._on_image("refused")
            raise _too_many(sources[caps.max_images].param, len(sources), caps.max_images)
        loaded = LoadedImages(self._held, tenant.name)
        request = _Request(loaded, payloads, tenant, scope, caps, asyncio.Semaphore(NUM_AT_ONCE))
        by_url: dict[str, list[str]] = {}
        for source in sources:
            by_url.setdefault(source.url, []).append(source.param)
        try:
            await _all(self._load_in_turn(request, url, params) for url, params in by_url.items())
        except BaseException:
            loaded.close()
            raise
        return loaded

    async def _load_in_turn(self, request: _Request, url: str, params: list[str]) -> None:
        async with request.turns:
            await self._load(request, url, params)

    async def _load(self, request: _Request, url: str, params: list[str]) -> None:
        """The image at `url`, which is that of all these parts."""
        caps = request.caps
        try:
            payload = await self._payload(request, url)
            bounds = Bounds(max_bytes=caps.max_image_bytes, max_pixels=caps.max_pixels)
            checked = await self._pool.check(payload, tenant=request.tenant.name, scope=request.scope, bounds=bounds)
            request.count(checked)
        except GatewayError as error:
            self._on_image("failed" if isinstance(error, MediaError) else "refused")
            _named(error, params[0])
            raise
        self._on_image("loaded")
        pixels = partial(self._pixels, payload, request.tenant.name, bounds, params[0])
        image = Image(checked.width, checked.height, checked.content_hash, pixels)
        request.loaded.by_path |= dict.fromkeys(params, image)

    async def _pixels(self, payload: Payload, tenant: str, bounds: Bounds, param: str) -> Pixels:
        try:
            return await self._pool.pixels(payload, tenant=tenant, bounds=bounds)
        except GatewayError as error:
            _named(error, param)
            raise

    async def _payload(self, request: _Request, url: str) -> Payload:
        """The file at `url`, wherever that is."""
        if (payload := request.payloads.get(url)) is not None:
            return request.loaded.keep(payload)
        head, is_data, text = url.partition(",")
        if head[:5].lower() != "data:":
            max_bytes = min(request.caps.max_image_bytes, request.caps.max_total_bytes)
            payload = await self._fetcher.fetch(url, tenant=request.tenant, max_bytes=max_bytes, scope=request.scope)
            return request.loaded.keep_fetched(payload)
        if not is_data or not head.lower().endswith(";base64"):
            raise InvalidRequestError(f"`{cut(head)}` is a `data:` URL without base64; send `data:image/png;base64,…`")
        return request.loaded.keep_text(text.encode())

    def _caps(self, tenant: Tenant) -> _Caps:
        settings, limits = self._settings, tenant.media
        return _Caps(
            *(
                of_all if of_tenant is None else min(of_all, of_tenant)
                for of_all, of_tenant in (
                    (settings.max_images, limits.max_images),
                    (settings.max_image_bytes, limits.max_image_bytes),
                    (settings.max_total_bytes, limits.max_total_bytes),
                    (settings.max_pixels, limits.max_pixels),
                    (settings.max_total_pixels, limits.max_total_pixels),
                )
            )
        )


def _too_many(param: str, num_images: int, most: int) -> InvalidRequestError:
    if most == 0:
        return InvalidRequestError(f"`{param}` is an image; none are taken from this tenant: send text", param=param)
    return InvalidRequestError(
        f"`{param}` is image `{most + 1}` of `{num_images}`; a request may have `{most}`: send fewer", param=param
    )


def _named(error: GatewayError, param: str) -> None:
    """Let `error` say which part it is about."""
    error.param = param
    error.message = f"`{param}`: {error.message}"


async def _all(works: Iterable[Coroutine[None, None, None]]) -> None:
    """All of them at once. When one fails the others are given up; of several errors the first in order is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
