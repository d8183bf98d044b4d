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
from server.errors import GatewayError, InvalidRequestError, MediaError, OverloadedError, RateLimitError
from server.media.loader import MediaLoader
from server.media_sections import MediaSettings
from server.payload import Payload, PayloadFile
from tests.services.images import data_url, encoded

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


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[MediaLoader, Counter[str]]]:
    outcomes: Counter[str] = Counter()
    loader = MediaLoader(MediaSettings(workers=1, **settings), SystemClock(), lambda outcome: outcomes.update([outcome]))
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
        assert len(content) == loader.num_bytes_held
        loaded.close()
        assert 0 == loader.num_bytes_held
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
        assert 0 == loader.num_bytes_held
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


async def test_one_tenants_images_leave_room_for_anothers() -> None:
    url = data_url(b"x" + encoded(200, 200, colour=(9, 9, 9, 9)))
    num_bytes = len(url.partition(",")[2])
    good = data_url(encoded(1, 1))
    async with running(max_held_bytes=8 * num_bytes) as (loader, _):

        def large(number: int) -> str:
            return data_url(encoded(200, 200, colour=(9, 9, number, 9)))

        held = [await loader.load(sources(large(number)), {}, TENANT, SCOPE) for number in range(2)]
        with pytest.raises(RateLimitError, match="of your images wait") as caught:
            await loader.load(sources(large(2)), {}, TENANT, SCOPE)
        assert "images" == caught.value.reason
        held.append(await loader.load(sources(good), {}, OTHER, SCOPE))
        held.pop(0).close()
        held.append(await loader.load(sources(large(2)), {}, TENANT, SCOPE))
        for loaded in held:
            loaded.close()
        assert 0 == loader.num_bytes_held


async def test_all_images_together_are_bounded() -> None:
    url = data_url(encoded(40, 40))
    num_bytes = len(url.partition(",")[2])
    async with running(max_held_bytes=4 * num_bytes + 8) as (loader, _):
        held = [await loader.load(sources(url), {}, Tenant(f"t{number}"), SCOPE) for number in range(4)]
        with pytest.raises(OverloadedError) as caught:
            await loader.load(sources(url), {}, Tenant("late"), SCOPE)
        assert caught.value.retry_after_s
        for loaded in held:
            loaded.close()
        (await loader.load(sources(url), {}, Tenant("late"), SCOPE)).close()


async def test_whoever_gives_up_leaves_nothing() -> None:
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
            assert 0 == loader.num_bytes_held
        (await loader.load(sources(data_url(encoded(5, 5))), {}, TENANT, SCOPE)).close()


async def test_what_is_forgotten_is_given_back() -> None:
    async with running() as (loader, _):
        loaded: Any = await loader.load(sources(data_url(encoded(50, 50))), {}, TENANT, SCOPE)
        assert loader.num_bytes_held > 0
        del loaded
        gc.collect()
        assert 0 == loader.num_bytes_held
