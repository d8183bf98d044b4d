"""The images of one request: its bounds, its errors, and what it holds while it lives."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from server.clock import SystemClock
from server.context import MediaLimits, Tenant
from server.errors import GatewayError, InvalidRequestError, MediaError, RateLimitError
from server.held import HeldBytes
from server.media.loader import LoadedImages, MediaLoader
from server.media_sections import MediaSettings
from server.payload import Payload, PayloadFile
from tests.services.images import NETWORK, data_url, encoded, image_server

TENANT = Tenant("acme")
OTHER = Tenant("other")
SCOPE = b"scope"


@dataclass
class Source:
    url: str
    number: int = 0

    @property
    def param(self) -> str:
        return f"messages[0].content[{self.number}]"


def sources(*urls: str) -> list[Source]:
    return [Source(url, number) for number, url in enumerate(urls)]


def num_payload_files() -> int:
    """How many files of payloads this process has open."""
    names: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            names.append(os.readlink(descriptor))
    return sum("memfd:payload" in name for name in names)


async def settled(num_files: int) -> None:
    """Return once no more files of payloads are open than that."""
    async with asyncio.timeout(60):
        while num_payload_files() > num_files:
            gc.collect()
            await asyncio.sleep(0)


@asynccontextmanager
async def running(held: HeldBytes | None = None, **settings: Any) -> AsyncIterator[tuple[MediaLoader, Counter[str]]]:
    outcomes: Counter[str] = Counter()
    held = held or HeldBytes(1 << 30)
    loader = MediaLoader(MediaSettings(workers=1, **settings), SystemClock(), held, lambda outcome: outcomes.update([outcome]))
    work = asyncio.ensure_future(loader.run())
    try:
        yield loader, outcomes
    finally:
        work.cancel()
        await asyncio.wait([work])


async def test_images_are_known_by_their_paths_and_one_url_is_loaded_once() -> None:
    async with running() as (loader, outcomes):
        red, blue = (data_url(encoded(30, 20, colour=colour)) for colour in [(255, 0, 0), (0, 0, 255)])
        loaded = await loader.load(sources(red, blue, red), {}, TENANT, SCOPE)
        images = [loaded.by_path[f"messages[0].content[{number}]"] for number in range(3)]
        assert [(30, 20)] * 3 == [(image.width, image.height) for image in images]
        assert images[0] is images[2]
        assert images[0].content_hash != images[1].content_hash
        pixels = await images[1].pixels()
        assert ("RGB", 30, 20, bytes([0, 0, 255]) * 600) == (pixels.mode, pixels.width, pixels.height, bytes(pixels.data))
        pixels.close()
        assert {"loaded": 2} == outcomes
        loaded.close()


async def test_a_payload_of_the_body_is_found_by_its_name() -> None:
    async with running() as (loader, _):
        file = PayloadFile()
        file.append(b"....")
        content = encoded(9, 8)
        file.append(content)
        loaded = await loader.load(sources("name"), {"name": Payload(file, 4, len(content))}, TENANT, SCOPE)
        assert (9, 8) == (loaded.by_path["messages[0].content[0]"].width, loaded.by_path["messages[0].content[0]"].height)
        file.fileno()
        loaded.close()
        with pytest.raises(ValueError, match="closed"):
            file.fileno()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
async def test_an_error_names_a_part_and_leaves_nothing(order: tuple[int, ...]) -> None:
    gc.collect()
    before = num_payload_files()
    urls = [data_url(encoded(400, 300)), data_url(b"GIF89a"), "gopher://example.com/"]
    async with running() as (loader, _):
        with pytest.raises(GatewayError) as caught:
            await loader.load(sources(*(urls[number] for number in order)), {}, TENANT, SCOPE)
        error = caught.value
        assert isinstance(error, InvalidRequestError | MediaError)
        assert f"`{error.param}`" in error.message
        assert error.param in ("messages[0].content[0]", "messages[0].content[1]", "messages[0].content[2]")
    if sys.platform == "linux":
        assert before == num_payload_files()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data:", "without base64"),
        ("data:image/png,abc", "without base64"),
        ("data:;base64", "without base64"),
        ("DATA:image/png;BASE64," + "A" * 9, "base64"),
        ("", "no scheme"),
        ("iVBORw0KGgoAAAANSUhEUg==", "data:"),
    ],
)
async def test_what_is_no_url_says_what_to_send(url: str, words: str) -> None:
    async with running() as (loader, _):
        with pytest.raises((InvalidRequestError, MediaError), match=words):
            await loader.load(sources(url), {}, Tenant("t", media=MediaLimits(remote_urls=True)), SCOPE)


@pytest.mark.parametrize("of_tenant", [False, True])
@pytest.mark.parametrize(("what", "most"), [("pixels", 600 + 200), ("bytes", len(encoded(30, 20)) + len(encoded(20, 10)))])
async def test_images_are_bounded_together_by_their_bytes_and_their_pixels(what: str, most: int, of_tenant: bool) -> None:
    urls = [data_url(encoded(30, 20)), data_url(encoded(20, 10)), data_url(encoded(1, 1))]
    bound = {f"max_total_{what}": most}
    tenant = Tenant("t", media=MediaLimits(**bound)) if of_tenant else TENANT
    async with running(**({} if of_tenant else bound)) as (loader, _):
        (await loader.load(sources(*urls[:2]), {}, tenant, SCOPE)).close()
        with pytest.raises(InvalidRequestError, match=f"`[0-9]+` {what}, more than `{most}` together; send fewer or smaller"):
            await loader.load(sources(*urls), {}, tenant, SCOPE)


async def test_small_images_share_a_descriptor_and_large_ones_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [(width, 7) for width in range(1, 9)]
    large = encoded(9, 7) + bytes(5000)
    monkeypatch.setattr("server.media.loader.MAX_GATHERED_BYTES", len(large) - 1)
    files = {f"/{width}.png": encoded(width, height) for width, height in sizes} | {"/9.png": large}
    with image_server(files) as served:
        network = {"ports": [served.port], "allowed_networks": [NETWORK]}
        async with running(**network) as (loader, _):
            before = num_payload_files()
            urls = [data_url(encoded(*size)) for size in sizes] + [served.url(path) for path in files]
            tenant = Tenant("t", media=MediaLimits(remote_urls=True))
            loaded = await loader.load(sources(*urls), {}, tenant, SCOPE)
            assert before + 2 == num_payload_files()
            for number, size in enumerate([*sizes, *sizes, (9, 7)]):
                pixels = await loaded.by_path[f"messages[0].content[{number}]"].pixels()
                assert size == (pixels.width, pixels.height)
                pixels.close()
            loaded.close()
            assert before == num_payload_files()


async def test_what_was_fetched_counts_until_it_is_closed() -> None:
    files = {f"/{number}.png": encoded(200, 200, colour=(9, 9, number, 9)) for number in range(4)}
    num_bytes = max(map(len, files.values()))
    eager, other = (Tenant(name, media=MediaLimits(remote_urls=True)) for name in ("eager", "other"))
    with image_server(files) as served:
        network = {"ports": [served.port], "allowed_networks": [NETWORK]}
        held_bytes = HeldBytes(8 * num_bytes)
        async with running(held_bytes, **network) as (loader, _):

            async def load(tenant: Tenant, number: int) -> LoadedImages:
                return await loader.load(sources(served.url(f"/{number}.png")), {}, tenant, SCOPE)

            held = [await load(eager, 0), await load(eager, 1)]
            with pytest.raises(RateLimitError) as caught:
                await load(eager, 2)
            assert "held_bytes" == caught.value.reason
            held.append(await load(other, 2))
            held.pop(0).close()
            held.append(await load(eager, 3))
            for loaded in held:
                loaded.close()
            assert 0 == held_bytes.total


async def test_whoever_gives_up_leaves_nothing() -> None:
    before = num_payload_files()
    async with running() as (loader, _):
        for num_turns in range(12):
            task = asyncio.ensure_future(
                loader.load(sources(*(data_url(encoded(300, n + 1)) for n in range(4))), {}, TENANT, SCOPE)
            )
            for _ in range(num_turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        await settled(before)
        (await loader.load(sources(data_url(encoded(5, 5))), {}, TENANT, SCOPE)).close()


async def test_what_is_forgotten_is_given_back() -> None:
    async with running() as (loader, _):
        before = num_payload_files()
        loaded: Any = await loader.load(sources(data_url(encoded(50, 50))), {}, TENANT, SCOPE)
        assert num_payload_files() > before
        del loaded
        await settled(before)
