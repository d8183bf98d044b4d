"""Two workers on one engine core of real vLLM: one prefix cache, sums that are the ledger's, and a death that all clients hear of."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from bench.drain import KEY, Served, engine_pids, kill_engine, served
from bench.ending_load import fates
from tests.services.redis import RedisServer, own_redis
from tests.wire.customers import wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore::ResourceWarning")]

NUM_STREAMS = 16
PROMPT = "What is the capital of France, and which river flows through it? " * 8
KINDS = {"input": "input_tokens", "cached_input": "cached_tokens", "output": "output_tokens"}


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    yield from own_redis()


@pytest.fixture
def arguments(demo_model: Path) -> list[str]:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    return ["--profile", "cpu-demo", "--model", str(demo_model)]


def worker_of(gateway: Served, connection: socket.socket) -> int:
    """The process that has the other end."""
    port = connection.getsockname()[1]
    children = psutil.Process(gateway.process.pid).children()
    return wait_for(
        lambda: next(
            (child.pid for child in children for end in child.net_connections("tcp") if end.raddr and end.raddr.port == port), 0
        )
    )


def one_to_each(gateway: Served, kept: ExitStack) -> dict[int, socket.socket]:
    """Connections that two different workers have."""
    found: dict[int, socket.socket] = {}
    while len(found) < 2:
        connection = kept.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=60))
        found.setdefault(worker_of(gateway, connection), connection)
    return found


def asked(connection: socket.socket, prompt: str) -> dict[str, Any]:
    """The usage of one answer."""
    messages = [{"role": "user", "content": prompt}]
    body = json.dumps({"model": "kimi-k3", "messages": messages, "max_tokens": 8, "temperature": 0.0}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    seen = b""
    while b'"usage"' not in seen or not seen.endswith(b"}"):
        piece = connection.recv(65536)
        assert piece, seen
        seen += piece
    usage: dict[str, Any] = json.loads(seen.partition(b"\r\n\r\n")[2])["usage"]
    return usage


def samples(gateway: Served) -> dict[str, float]:
    """By name and labels as written; on a connection of its own."""
    lines = httpx.get(f"http://127.0.0.1:{gateway.port}/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


def ledger_sums(gateway: Served) -> tuple[int, ...]:
    with closing(sqlite3.connect(gateway.folder / "gateway.db")) as connection:
        columns = ", ".join(f"SUM({column})" for column in KINDS.values())
        found: tuple[int, ...] = connection.execute(f"SELECT COUNT(*), {columns} FROM ledger").fetchone()
        return found


def told(found: dict[str, float]) -> tuple[float, ...]:
    who = 'model="kimi-k3",tenant="default"'
    requests = found['k3gw_requests_total{api="chat",model="kimi-k3",outcome="finished",tenant="default"}']
    return (requests, *(found[f'k3gw_tokens_total{{kind="{kind}",{who}}}'] for kind in KINDS))


async def test_two_workers_on_one_engine(tmp_path: Path, arguments: list[str], redis: RedisServer) -> None:
    storage = {"ledger_url": f"sqlite:///{tmp_path}/gateway.db", "spool_path": f"{tmp_path}/spool", "limits_url": redis.url}
    async with served(tmp_path, arguments, http={"port": 0, "workers": 2}, storage=storage) as gateway:
        processes = psutil.Process(gateway.process.pid).children(recursive=True)
        await asyncio.to_thread(both_serve_as_one, gateway)
        assert 1 == len(engine_pids(gateway.process.pid)), "one core"
        died = await kill_engine(gateway, NUM_STREAMS, 6000)
    psutil.wait_procs(processes, timeout=20)
    assert not any(process.is_running() for process in processes)
    assert {"engine_dead": NUM_STREAMS} == fates(died.streams)
    assert died.after_s[-1] < 10, "a second, on a machine that has nothing else to do"
    assert 1 == died.exit_code


def both_serve_as_one(gateway: Served) -> None:
    before = samples(gateway)
    with ExitStack() as kept:
        first, second = one_to_each(gateway, kept).values()
        usages = [asked(connection, PROMPT) for connection in (first, second, first, second)]
        cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
        assert 0 == cached[0]
        assert cached[1] > len(PROMPT) // 8, "the second worker finds what the first has left"
        assert [cached[1]] * 3 == cached[1:]
        sums = wait_for(lambda: ledger_sums(gateway), lambda sums: sums[0] == len(usages))
        scrapes = [samples(gateway) for _ in range(6)]
    for scrape in scrapes:
        assert sums == told(scrape)
        assert sum(cached) == grown(before, scrape, "k3gw_engine_prefix_cache_hit_tokens_total")
        assert sums[1] == grown(before, scrape, "k3gw_engine_prefix_cache_queried_tokens_total")
        assert sums[3] == grown(before, scrape, 'vllm:generation_tokens_total{engine="0",model_name="demo-model"}')
        assert 32 == scrape["k3gw_engine_seats"], "of the one engine"
    assert all(scrapes[0].keys() == scrape.keys() for scrape in scrapes)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_setting_that_vllm_does_not_take_ends_with_2_and_is_told_once(
    tmp_path: Path, redis: RedisServer, arguments: list[str], workers: int
) -> None:
    """A supervisor should not start it again, and who reads the log should not have to look for it."""
    http = {"port": 0, "workers": workers}
    engine = {"overrides": {"max_num_seqs": "many"}}
    with pytest.raises(RuntimeError, match="did not start") as caught:
        async with served(tmp_path, arguments, http=http, storage={"limits_url": redis.url}, engine=engine):
            pass
    said = str(caught.value)
    assert "exit code 2" in said
    assert 1 == said.count("`max_num_seqs`: Input should be a valid integer")
    assert "Traceback" not in said


def grown(before: dict[str, float], now: dict[str, float], name: str) -> float:
    """Since the engine was warmed up."""
    return now[name] - before[name]
