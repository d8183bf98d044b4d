"""What `bench.images` sends are images, no two of them alike, and what it measures is seen."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time
from typing import Any

import pytest
from PIL import Image

from bench.image_files import Bodies, Picture, ending
from bench.image_load import Senders, Streams
from bench.images import MAX_BLOCK_MS, _missed
from bench.loop_probe import LoopProbe
from tests.conftest import KEY, StartGateway

LETTERS = [{"step_interval_ms": 5, "reply": [{"repeat": {"times": 100_000, "of": [{"text": "x"}]}}]}]
SMALL = Picture(40, 30, 3000)


def files(body: list[bytes]) -> list[bytes]:
    content = json.loads(b"".join(body))["messages"][0]["content"]
    return [base64.b64decode(part["image_url"]["url"].partition(",")[2], validate=True) for part in content[1:]]


@pytest.mark.parametrize("width", [40, 41, 42, 43])
@pytest.mark.parametrize("num_bytes", [0, 3000, 10_000_000])
def test_a_picture_is_a_png_of_its_size(width: int, num_bytes: int) -> None:
    beginning = Picture(width, 300, num_bytes).beginning()
    assert 0 == len(beginning) % 3
    image = Image.open(io.BytesIO(beginning + ending(7)))
    image.load()
    assert ("PNG", "RGB", (width, 300)) == (image.format, image.mode, image.size)
    rows = min(300, num_bytes // (3 * width + 1))
    assert 3 * width * rows <= len(beginning) <= 3 * width * rows + 3000


def test_no_two_bodies_share_an_image() -> None:
    bodies = Bodies(SMALL, 3, max_tokens=8, num_kinds=2)
    found = [file for _ in range(4) for file in files(bodies.next())]
    assert 12 == len(found) == len(set(found))
    for file in found:
        Image.open(io.BytesIO(file)).load()


async def test_a_step_that_keeps_the_loop_is_seen_and_waiting_is_not() -> None:
    probe = LoopProbe()
    running = asyncio.ensure_future(probe.run())
    await asyncio.sleep(0.05)
    probe.take()
    await asyncio.sleep(0.05)
    idle = probe.take()
    until_s = time.thread_time() + 0.08
    while time.thread_time() < until_s:
        pass
    await asyncio.sleep(0.01)
    busy = probe.take()
    running.cancel()
    assert busy["block_ms"] > 75 > MAX_BLOCK_MS
    assert busy["block_wall_ms"] >= busy["block_ms"] > idle["block_ms"]


async def test_streams_and_senders_run_over_a_gateway(start_gateway: StartGateway) -> None:
    gateway = start_gateway(LETTERS)
    port, streams = int(gateway.url.rpartition(":")[2]), Streams()
    await streams.open(port, KEY, 2, 0.005)
    senders = Senders(port, KEY, Bodies(SMALL, 1, max_tokens=2), 2)
    senders.start()
    async with asyncio.timeout(20):
        while len(streams.gaps_s) < 20 or len(senders._times_s) < 3:
            await asyncio.sleep(0.01)
    sent = await asyncio.to_thread(senders.stop)
    await streams.close()
    assert (0, None) == (sent["num_failed"], sent["failure"])
    assert sent["num_all"] >= 3
    assert all(gap_s >= 0 for gap_s in streams.gaps_s)


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({}, []),
        ({"p99_ratio": 1.3}, ["p99_ratio is 1.30, goal 1.2"]),
        ({"block_ms": 21.0, "memory_ratio": 1.2}, ["block_ms is 21.00, goal 20", "memory_ratio is 1.20, goal 1.1"]),
        ({"num_failed": 1}, ["num_failed is 1.00, goal 0"]),
    ],
)
def test_goals_that_are_missed_are_told(figures: dict[str, Any], expected: list[str]) -> None:
    met = {"p99_ratio": 1.1, "block_ms": 5.0, "memory_ratio": 1.0, "num_failed": 0}
    assert expected == _missed({**met, **figures})
