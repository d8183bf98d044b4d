"""The measurement of what metrics cost measures what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from bench import load
from bench.metrics_server import KEY, MODEL, Server

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("name", "num_requests"), [("on", 16.0), ("off", 0.0)])
async def test_off_counts_nothing_and_answers_the_same(name: str, num_requests: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    server = Server()
    try:
        server.wait_ready()
        if name == "off":
            server.switch()
        figures = await load.run(server.port, server.pid, 1, 8, MODEL, KEY)
        if name == "off":
            server.switch()
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"http://127.0.0.1:{server.port}/metrics")).text
    finally:
        server.stop()
    assert 16 * 8 == figures["chunks"]
    counted = [line for line in text.splitlines() if line.startswith(("k3gw_requests_total{", "k3gw_inter_token_seconds_count{"))]
    assert bool(num_requests) == bool(counted)
    assert sum(float(line.split()[-1]) for line in counted if "requests_total" in line) == num_requests


@pytest.mark.long
def test_it_runs_and_prints_its_figures() -> None:
    command = [
        sys.executable,
        "-m",
        "bench.metrics",
        "--rounds",
        "1",
        "--windows",
        "1",
        "--streams",
        "2",
        "--tokens",
        "64",
        "--tenants",
        "3",
    ]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    figures = json.loads(output.splitlines()[-1])
    assert 3 == figures["scrape"]["tenants"]
    assert 0 < figures["alone"]["delta_ns"] < 100_000
