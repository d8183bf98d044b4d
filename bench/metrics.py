"""What metrics cost: streams with metrics on against off, and a scrape while streams run.

    python -m bench.metrics [--model DIR] [--streams 32] [--tokens 256] [--rounds 150] [--tenants 200] [--windows 10]

`off` is the same gateway with a recorder that counts nothing and choices that note no times. What else runs on the machine makes
some rounds dearer by half, and its own moods last longer than a round: so rounds are short, each is compared with the one next
to it, and the median of these ratios is printed, with the range that holds it nineteen times of twenty. With `--model` the engine
is vLLM's `AsyncLLM` over a fake core, else the scripted one, which is cheaper, so metrics are a larger part. Then `--tenants`
tenants have streams at a fixed pace, and every other window of two seconds a process of its own scrapes; what chunks come late by
is compared, and what the server needs. Prints a table, and the same as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx

from bench import load
from bench.metrics_server import ADMIN_KEY, KEY, MODEL, STEP_S, NoPace, Server
from bench.processes import end_on_sigterm
from server.clock import SystemClock
from server.metrics.recorder import Recorder
from server.pace import Pace
from server.record import GenerationRecord

_NUM_DELTAS: Final = 100_000
WINDOW_S: Final = 2.0
SCRAPE_EVERY_S: Final = 0.25
SCRAPER: Final = """
import sys, time, urllib.request
for line in sys.stdin:
    began_s = time.perf_counter()
    print(len(urllib.request.urlopen(line.strip()).read()), time.perf_counter() - began_s, flush=True)
"""


@dataclass
class Window:
    """What was seen in the windows of one kind: how late chunks were, in seconds, and the CPU seconds of the server."""

    late_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    num_scrapes: int = 0

    def figures(self) -> dict[str, Any]:
        late_ms = sorted(1000 * late_s for late_s in self.late_s)
        found = {f"p{part:g}": round(late_ms[int(len(late_ms) * part / 100)], 2) for part in (50, 99, 99.9)}
        return {"chunks": len(late_ms), **found, "max": round(late_ms[-1], 2)}


async def _on_against_off(options: argparse.Namespace) -> dict[str, Any]:
    """One server, which is switched between short rounds, so that a neighbour on the machine hits both alike."""
    costs: dict[str, list[float]] = {"on": [], "off": []}
    server = Server(options.model)

    async def round_cost() -> float:
        before_s = server.cpu_s
        figures = await load.run(server.port, server.pid, options.streams, options.tokens, MODEL, KEY)
        return (server.cpu_s - before_s) / int(figures["chunks"]) * 1000

    try:
        server.wait_ready()
        await round_cost()
        for number in range(options.rounds):
            for name in ("on", "off") if number % 2 else ("off", "on"):
                if name == "off":
                    server.switch()
                costs[name].append(await round_cost())
                if name == "off":
                    server.switch()
    finally:
        server.stop()
    figures = {name: [round(sorted(found)[len(found) * part // 4], 5) for part in (0, 1, 2)] for name, found in costs.items()}
    ratios = sorted(on_s / off_s for on_s, off_s in zip(costs["on"], costs["off"], strict=True))
    # The median's own range by order statistics, which supposes nothing of how costs are spread.
    middle, reach = len(ratios) / 2, 0.98 * len(ratios) ** 0.5
    bounds = [ratios[max(0, int(middle - reach))], ratios[min(len(ratios) - 1, int(middle + reach))]]
    return {
        **figures,
        "ratio": round(median(ratios), 3),
        "ratio_range": [round(bound, 3) for bound in bounds],
        "rounds": options.rounds,
    }


async def _keys(server: Server, number: int) -> list[str]:
    """A key of each of so many tenants."""
    url, headers = f"http://127.0.0.1:{server.port}", {"authorization": f"Bearer {ADMIN_KEY}"}
    secrets = []
    async with httpx.AsyncClient(base_url=url, headers=headers) as client:
        for index in range(number):
            settings = {"weight": 1 + index % 4, "budget": {"tokens_per_day": 10**12}}
            (await client.put(f"/admin/v1/tenants/tenant-{index:04}", json=settings)).raise_for_status()
            answer = await client.post("/admin/v1/keys", json={"tenant": f"tenant-{index:04}"})
            secrets.append(str(answer.raise_for_status().json()["secret"]))
        return secrets


class Streams:
    """So many streams at a time, each of another tenant; `window` is where what they see is noted now."""

    def __init__(self, port: int, keys: Sequence[str], num_tokens: int) -> None:
        self._port = port
        self._keys = keys
        self._num_tokens = num_tokens
        self._random = random.Random(6)
        self.window: Window | None = None

    async def run(self) -> None:
        """One stream after another."""
        while True:
            request = load.request(0, self._num_tokens, MODEL, self._random.choice(self._keys))
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head[:20]:
                raise RuntimeError(f"the server refused: {head!r}")
            before_s = None
            while await reader.read(65536):
                now_s = time.perf_counter()
                if before_s is not None and self.window is not None:
                    self.window.late_s.append(max(0.0, now_s - before_s - STEP_S))
                before_s = now_s
            writer.close()


async def _scrapes(options: argparse.Namespace) -> dict[str, Any]:
    server = Server(step_s=STEP_S)
    try:
        server.wait_ready()
        keys = await _keys(server, options.tenants)
        for key in keys:
            await load.stream(server.port, load.request(0, 8, MODEL, key), load.Measured())
        url = f"http://127.0.0.1:{server.port}/metrics"
        scraper = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SCRAPER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert scraper.stdin is not None
        assert scraper.stdout is not None

        async def scrape() -> tuple[int, float]:
            assert scraper.stdin is not None
            assert scraper.stdout is not None
            scraper.stdin.write(url.encode() + b"\n")
            num_bytes, seconds = (await scraper.stdout.readline()).split()
            return int(num_bytes), float(seconds)

        await scrape()
        before_s = server.cpu_s
        num_bytes = [(await scrape())[0] for _ in range(50)][-1]
        idle_s = (server.cpu_s - before_s) / 50
        windows, took_s = await _under_load(server, Streams(server.port, keys, options.tokens), options, scrape)
        scraper.stdin.close()
        await scraper.wait()
    finally:
        server.stop()
    with_, without = windows["scraped"], windows["not scraped"]
    return {
        "tenants": options.tenants,
        "bytes": num_bytes,
        "idle_cpu_ms": round(1000 * idle_s, 2),
        "load_cpu_ms": round(1000 * (with_.cpu_s - without.cpu_s) / with_.num_scrapes, 2),
        "took_p50_ms": round(1000 * median(took_s), 1),
        "late_ms": {name: window.figures() for name, window in windows.items()},
    }


async def _under_load(
    server: Server, streams: Streams, options: argparse.Namespace, scrape: Any
) -> tuple[dict[str, Window], list[float]]:
    windows, took_s = {"scraped": Window(), "not scraped": Window()}, []
    running = [asyncio.ensure_future(streams.run()) for _ in range(options.streams)]
    await asyncio.sleep(2)
    for _ in range(options.windows):
        for name, window in windows.items():
            streams.window = window
            before_s, end_s = server.cpu_s, time.perf_counter() + WINDOW_S
            while (left_s := end_s - time.perf_counter()) > 0:
                if name == "scraped":
                    took_s.append((await scrape())[1])
                    window.num_scrapes += 1
                    left_s = max(0.0, SCRAPE_EVERY_S - took_s[-1])
                await asyncio.sleep(min(left_s, SCRAPE_EVERY_S))
            window.cpu_s += server.cpu_s - before_s
    streams.window = None
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return windows, took_s


def _ended(number: int) -> GenerationRecord:
    """A request of tenant `number` that has met everything."""
    times: dict[str, Any] = {"ended_s": 1.0, "queued_s": 0.0, "admitted_s": 0.1, "first_token_s": 0.2}
    record = GenerationRecord("r", f"tenant-{number:04}", MODEL, 0.0, **times)
    record.choice_speeds, record.token_gaps, record.num_draft_tokens, record.rejected_by = [40.0], [1] * 12, 7, "requests"
    return record


def _pieces(num_tenants: int) -> dict[str, float]:
    """What writing a scrape takes where every series has changed, in this process and alone: all pieces, and the longest."""
    recorder = Recorder([MODEL])
    totals, longest = [], []
    for _ in range(20):
        for number in range(num_tenants):
            recorder.started(record := _ended(number))
            recorder.ended(record)
        seconds, began_s = [], time.perf_counter()
        for piece in recorder.pieces():
            piece.encode()
            seconds.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
        totals.append(1000 * sum(seconds))
        longest.append(1000 * max(seconds))
    return {"all_ms": round(median(totals), 2), "longest_ms": round(median(longest), 3)}


def _alone() -> dict[str, float]:
    """What noting times adds to each delta, and what counting a request takes, in this process: where a busy machine hides it."""

    def delta_ns(kind: type[Pace]) -> float:
        pace = kind(SystemClock().monotonic_s)
        pace.ask()
        began_s = time.process_time()
        for _ in range(_NUM_DELTAS):
            pace.came(1)
        return (time.process_time() - began_s) / _NUM_DELTAS * 1e9

    recorder, records = Recorder([MODEL]), [_ended(0) for _ in range(_NUM_DELTAS // 20)]
    began_s = time.process_time()
    for record in records:
        recorder.started(record)
        recorder.ended(record)
    request_us = (time.process_time() - began_s) / len(records) * 1e6
    added_ns = median(delta_ns(Pace) - delta_ns(NoPace) for _ in range(5))
    return {"delta_ns": round(added_ns), "request_us": round(request_us, 1)}


def main() -> None:
    """Run and print."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder with config.json and a tokenizer; weights are not read")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--tenants", type=int, default=200)
    options = parser.parse_args()
    cost = asyncio.run(_on_against_off(options))
    scrapes = asyncio.run(_scrapes(options))
    pieces, alone = _pieces(options.tenants), _alone()
    print(f"CPU seconds per 1000 chunks at {options.streams} streams; least, lower quartile, median of {options.rounds} rounds")
    print(f"metrics on {cost['on']}, off {cost['off']}; on against off {cost['ratio']}, between {cost['ratio_range']}")
    print(f"of that, alone: {alone['delta_ns']} ns a chunk, and {alone['request_us']} µs a request")
    print(
        f"a scrape of {options.tenants} tenants: {scrapes['bytes']} bytes; CPU {scrapes['idle_cpu_ms']} ms idle, "
        f"{scrapes['load_cpu_ms']} ms under load; written alone in {pieces['all_ms']} ms, {pieces['longest_ms']} ms at once"
    )
    for name, late_ms in scrapes["late_ms"].items():
        print(f"chunks late, ms, while {name:11}: {late_ms}")
    print(json.dumps({"cost": cost, "scrape": scrapes, "pieces": pieces, "alone": alone}))


if __name__ == "__main__":
    main()
