"""A scrape of everything: vLLM's families beside ours, in pieces between which others have their turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from server.metrics import catalog
from server.metrics.collectors import AdmissionFigures
from server.metrics.families import PIECE_SERIES
from server.metrics.recorder import Recorder
from server.metrics.vllm_families import vllm_pieces
from server.record import GenerationRecord

PIECE_BYTES = 100_000


def test_vllms_families_come_without_those_of_others_and_without_times_of_creation() -> None:
    registry = CollectorRegistry()
    Counter("vllm:prompt_tokens", "Prefilled tokens.", ["engine"], registry=registry).labels("0").inc(3)
    Gauge("vllm:num_requests_running", "Running.", registry=registry).set(2)
    Histogram("vllm:ttft", "Time.", registry=registry, buckets=(1.0,)).observe(0.5)
    Counter("python_something", "Not vLLM's.", registry=registry).inc()
    text = "".join(vllm_pieces(registry))

    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples == {
        ("vllm:prompt_tokens_total", "0"): 3,
        ("vllm:num_requests_running",): 2,
        ("vllm:ttft_bucket", "1.0"): 1,
        ("vllm:ttft_bucket", "+Inf"): 1,
        ("vllm:ttft_count",): 1,
        ("vllm:ttft_sum",): 0.5,
    }
    assert "_created" not in text
    assert "python_something" not in text


def busy_recorder(num_tenants: int) -> Recorder:
    recorder = Recorder(["kimi-k3"])
    for number in range(num_tenants):
        record = GenerationRecord("r", f"tenant-{number}", "kimi-k3", arrived_s=0.0, ended_s=1.0, first_token_s=0.5)
        record.token_gaps, record.choice_speeds = [1] * 12, [40.0]
        recorder.started(record)
        recorder.ended(record)
    return recorder


def test_pieces_are_small_and_end_with_whole_lines() -> None:
    pieces = [piece for piece in busy_recorder(500).pieces() if piece]
    assert all(piece.endswith("\n") for piece in pieces)
    assert max(len(piece) for piece in pieces) < PIECE_BYTES
    assert sum(len(piece) for piece in pieces) > 10 * PIECE_BYTES


async def test_others_have_their_turns_during_a_scrape() -> None:
    recorder = busy_recorder(500)
    num_turns = 0

    async def others() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    running = asyncio.ensure_future(others())
    parts = [part async for part in recorder.exposition()]
    running.cancel()
    assert max(map(len, parts)) < 2 * PIECE_BYTES
    assert num_turns > sum(map(len, parts)) / PIECE_BYTES


async def test_others_have_their_turns_while_tenants_are_looked_at_that_have_nothing_to_say() -> None:
    recorder, looked_at = Recorder(max_tenants=10), 0

    def left() -> Iterator[tuple[str, float | None]]:
        nonlocal looked_at
        for number in range(10_000):
            looked_at += 1
            yield f"t-{number}", None if number % 2 else 0.5

    recorder.watch_admission(lambda: AdmissionFigures(budget_left=left()))
    most_at_once = 0

    async def others() -> None:
        nonlocal most_at_once
        before = 0
        while True:
            most_at_once, before = max(most_at_once, looked_at - before), looked_at
            await asyncio.sleep(0)

    running = asyncio.ensure_future(others())
    async for _ in recorder.exposition():
        pass
    running.cancel()
    assert 10_000 == looked_at
    assert most_at_once <= PIECE_SERIES


async def test_what_is_counted_meanwhile_breaks_no_scrape() -> None:
    """Tenants that are seen for the first time while their metric is written come with the next scrape."""
    recorder = busy_recorder(200)

    async def scraped() -> str:
        return b"".join([part async for part in recorder.exposition()]).decode()

    scrape = asyncio.ensure_future(scraped())
    for number in range(300):
        await asyncio.sleep(0)
        record = GenerationRecord("r", f"new-{number}", "kimi-k3", arrived_s=0.0, ended_s=1.0)
        recorder.started(record)
        recorder.ended(record)
    text = await scrape
    for family in text_string_to_metric_families(text):
        if family.type != "histogram":
            continue
        last = {
            sample.labels["tenant"]: sample.value
            for sample in family.samples
            if sample.labels.get("le") == "+Inf" and "tenant" in sample.labels
        }
        counts = {
            sample.labels["tenant"]: sample.value
            for sample in family.samples
            if sample.name.endswith("_count") and "tenant" in sample.labels
        }
        assert last == counts
    assert 'k3gw_request_seconds_count{model="kimi-k3",tenant="new-299"} 1.0' in await scraped()


def test_every_metric_is_written_once() -> None:
    text = "".join(busy_recorder(1).pieces())
    written = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE k3gw_")]
    without_engine = {catalog.PREFIX + metric.name for metric in (*catalog.RECORDED, *catalog.FROM_ADMISSION, catalog.ENGINE_UP)}
    assert len(written) == len(set(written))
    assert without_engine == set(written)
