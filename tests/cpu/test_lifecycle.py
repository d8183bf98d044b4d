"""Real vLLM from start to stop, as `k3-gateway serve` runs it: what clients, the ledger and metrics see of a drain, a death and a restart.

One story in one folder, as each start takes its time: docs/operations.md has it as a table.
"""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from bench.drain import KEY, Served, engine_pids, kill_engine, served
from bench.ending_load import WHOLE, Clients, fates

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore::ResourceWarning")]

NUM_STREAMS = 16
DRAIN_TIMEOUT_S = 6
ENDLESS = {"max_tokens": 6000, "ignore_eos": True}
GONE_S = 60.0
"""Long before an engine that loads beside other work would be up by itself."""


@pytest.fixture
def arguments(demo_model: Path) -> list[str]:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    return ["--profile", "cpu-demo", "--model", str(demo_model)]


async def until(is_so: Callable[[], Any], within_s: float = 300.0) -> None:
    async with asyncio.timeout(within_s):
        while not is_so():
            await asyncio.sleep(0.01)


def family(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def check_gone(processes: list[psutil.Process]) -> None:
    """Nothing of a gateway stays, and holds memory that the next one needs."""
    _, alive = psutil.wait_procs(processes, timeout=GONE_S)
    assert [] == alive


def requests_by_outcome(gateway: Served) -> Counter[str]:
    """As `/metrics` counts them."""
    found: Counter[str] = Counter()
    for line in httpx.get(f"http://127.0.0.1:{gateway.port}/metrics").text.splitlines():
        if line.startswith("k3gw_requests_total{"):
            found[line.partition('outcome="')[2].partition('"')[0]] += round(float(line.rpartition(" ")[2]))
    return +found


async def test_death_restart_and_drain(tmp_path: Path, arguments: list[str]) -> None:
    http = {"port": 0, "drain_timeout_s": DRAIN_TIMEOUT_S}
    await killed(tmp_path, arguments, http)
    await stopped_while_it_starts(tmp_path, arguments, http, num_signals=2)
    await drained(tmp_path, arguments, http)


async def killed(folder: Path, arguments: list[str], http: dict[str, Any]) -> None:
    """Every client knows within a second; the process ends with 1, for its supervisor."""
    async with served(folder, arguments, http=http) as gateway:
        processes = family(gateway.process.pid)
        died = await kill_engine(gateway, NUM_STREAMS, ENDLESS["max_tokens"])
    check_gone(processes)
    assert {"engine_dead": NUM_STREAMS} == fates(died.streams)
    assert {200} == {request.status for request in died.streams}
    assert died.after_s[-1] < 10, "a second, on a machine that has nothing else to do"
    assert died.unready_s < 10
    assert 1 == died.exit_code
    rows = {name: (outcome, tokens > 0) for name, outcome, tokens in gateway.rows() if name.startswith("stream-")}
    assert {request.name: ("engine_dead", True) for request in died.streams} == rows


async def stopped_while_it_starts(folder: Path, arguments: list[str], http: dict[str, Any], *, num_signals: int) -> None:
    """Nobody waits for an engine that nobody wants any more."""
    seen: list[psutil.Process] = []
    sent_s = 0.0

    async def stop(gateway: Served) -> None:
        nonlocal sent_s
        await until(lambda: engine_pids(gateway.process.pid))
        seen.extend(family(gateway.process.pid))
        for _ in range(num_signals):
            gateway.send(signal.SIGTERM)
        sent_s = time.monotonic()

    with pytest.raises(RuntimeError, match="did not start") as caught:
        async with served(folder, arguments, on_start=stop, http=http):
            pass
    assert time.monotonic() - sent_s < GONE_S
    check_gone(seen)
    assert "exit code 0" in str(caught.value)
    assert "Traceback" not in str(caught.value)


async def drained(folder: Path, arguments: list[str], http: dict[str, Any]) -> None:
    """It is back: the ledger has everything, metrics begin anew. Then half of its answers end in time, half don't."""
    async with served(folder, arguments, http=http) as gateway:
        assert {} == requests_by_outcome(gateway)
        assert {"engine_dead": NUM_STREAMS} == Counter(outcome for _, outcome, _ in gateway.rows())
        assert WHOLE == (await Clients(gateway.port, KEY).ask("back", "hi", stream=True, max_tokens=8)).fate
        assert {"finished": 1} == requests_by_outcome(gateway)
        processes, clients = family(gateway.process.pid), Clients(gateway.port, KEY)
        async with asyncio.TaskGroup() as tasks:
            for number in range(NUM_STREAMS):
                wanted = {**ENDLESS, "max_tokens": 8} if number % 2 else ENDLESS
                tasks.create_task(clients.ask(f"drained-{number}", f"{number}: tell me all", stream=number % 4 < 2, **wanted))
            await until(lambda: sum(request.is_begun for request in clients.requests) >= NUM_STREAMS // 2)
            gateway.send(signal.SIGTERM)
            await gateway.until_unready()
            refused = await Clients(gateway.port, KEY).ask("refused", "hi", stream=True)
        assert 0 == await gateway.process.wait(), gateway.log
    check_gone(processes)
    assert (503, "draining") == (refused.status, refused.fate)
    assert {WHOLE: NUM_STREAMS // 2, "draining": NUM_STREAMS // 2} == fates(clients.requests)
    assert {(200, True), (503, False)} == {(one.status, one.is_streamed) for one in clients.requests if one.fate == "draining"}
    rows = {name: (outcome, tokens > 0) for name, outcome, tokens in gateway.rows() if outcome != "engine_dead"}
    wanted_rows = {one.name: ("finished" if one.fate == WHOLE else "rejected", True) for one in clients.requests}
    assert {**wanted_rows, "back": ("finished", True), "refused": ("rejected", False)} == rows
    assert "Traceback" not in gateway.log
