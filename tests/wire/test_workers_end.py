"""How a gateway with several workers ends: drained, hurried, killed in part, or never begun."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.services.gateway import ROOT, running
from tests.services.redis import RedisServer, own_redis
from tests.services.workers import KEY, Workers, ask
from tests.wire.customers import Customer, kept_rows, wait_for


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    yield from own_redis()


async def test_the_first_key_and_the_banner_are_said_once_and_a_drain_at_any_worker_drains_all(
    redis: RedisServer, tmp_path: Path
) -> None:
    gateway = Workers(tmp_path, redis, 3, auth="keys")
    gateway.write(tenants={})
    with running(gateway):
        assert [1, 1] == [len(re.findall(words, gateway.log)) for words in ("has the API key", "base URL")]
        found = re.search(r"has the API key (\S+)", gateway.log)
        assert found
        assert 1 == gateway.log.count(f"Bearer {found[1]}"), "the banner has it, too"
        with httpx.Client() as http:
            customer = Customer(http, gateway.url, "default", found[1])
        under_way = asyncio.gather(*(ask(customer, "wait", stream=number % 2 == 0) for number in range(30)))
        await asyncio.to_thread(wait_for, lambda: 30 == gateway.sum("k3gw_inflight_requests"))
        asked = await asyncio.to_thread(httpx.post, f"{gateway.url}/admin/v1/drain", headers=gateway.admin)
        await asyncio.to_thread(wait_for, lambda: {503} == {gateway.get("/ready").status_code for _ in range(8)})
        refused = [await ask(customer) for _ in range(8)]
        answers = await under_way
        code = await asyncio.to_thread(gateway.wait_code)

    assert 202 == asked.status_code
    assert {503} == {answer.status_code for answer in refused}
    assert {200} == {answer.status_code for answer in answers}
    assert all(answer.text.rstrip().endswith("[DONE]") for answer in answers[::2])
    assert 0 == code
    outcomes = Counter(row["outcome"] for row in kept_rows(tmp_path, gateway.ledger))
    assert {"finished": 30} == {name: count for name, count in outcomes.items() if name != "rejected"}


def begin(gateway: Workers, count: int) -> list[socket.socket]:
    """Streams that have begun and stay, each on a connection of its own."""
    with httpx.Client() as http:
        customer = Customer(http, gateway.url, "default", KEY)
    connections = []
    for _ in range(count):
        with customer.connection("hold", stream=True) as connection:
            connections.append(connection.dup())
    for connection in connections:
        connection.settimeout(20)
        seen = b""
        while b"data: " not in seen:
            seen += connection.recv(65536)
    return connections


def rest(connection: socket.socket) -> bytes:
    """Until the other side is gone."""
    seen = b""
    try:
        while piece := connection.recv(65536):
            seen += piece
    except ConnectionError:
        pass
    finally:
        connection.close()
    return seen


@pytest.mark.parametrize("dies", ["a worker", "the supervisor"])
def test_a_death_ends_everything_within_a_second(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    short = tempfile.mkdtemp(dir=tempfile.gettempdir())  # a socket's path has its bounds
    monkeypatch.setenv("TMPDIR", short)
    sockets = lambda: [path.name for path in Path(short).glob("k3gw-*/*.sock")]  # noqa: E731
    gateway = Workers(tmp_path, redis)
    with running(gateway):
        assert {"0.sock", "1.sock"} == set(sockets())
        processes = gateway.processes
        connections = begin(gateway, 12)
        begun_s = time.monotonic()
        if dies == "a worker":
            processes[1].kill()
        else:
            gateway.send(signal.SIGKILL)
        ends = [rest(connection) for connection in connections]
        took_s = time.monotonic() - begun_s
        code = gateway.wait_code()
        psutil.wait_procs(processes, timeout=10)

        assert took_s < 10, "a second, on a machine that has nothing else to do"
        told = [end for end in ends if b"engine_dead" in end]
        assert all(b"[DONE]" not in end for end in ends)
        assert len(told) == 12 if dies == "the supervisor" else 0 < len(told) < 12
        assert (1 if dies == "a worker" else -signal.SIGKILL) == code
        assert not any(process.is_running() for process in processes)
        assert [] == list(Path(short).glob("k3gw-*")), "whoever died"
    shutil.rmtree(short)
    if dies == "a worker":
        assert "worker 1 has ended with exit code -9" in gateway.log


def test_a_second_signal_stops_at_once(redis: RedisServer, tmp_path: Path) -> None:
    gateway = Workers(tmp_path, redis, drain_timeout_s=600)
    with running(gateway):
        connections = begin(gateway, 6)
        gateway.send(signal.SIGTERM)
        wait_for(lambda: "stopping: answers under way have 600 s" in gateway.log)
        wait_for(lambda: 503 == gateway.get("/ready").status_code)
        begun_s = time.monotonic()
        gateway.send(signal.SIGINT)
        ends = [rest(connection) for connection in connections]
        code = gateway.wait_code()

    assert (0, True) == (code, time.monotonic() - begun_s < 10)
    assert all(b'"error"' in end and b"[DONE]" not in end for end in ends)
    outcomes = Counter(row["outcome"] for row in kept_rows(tmp_path, gateway.ledger))
    assert 6 == outcomes.total()


def code_of(gateway: Workers) -> int:
    """The exit code of one that ends by itself."""
    gateway.start(waits=False)
    try:
        return gateway.wait_code()
    finally:
        gateway.kill()


OPENS_NO_ENGINE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import server.workers.worker
from server.engine.profiles import ProfileError

async def open_engine():
    raise ProfileError("that is why")

server.workers.worker.engine_opener = lambda settings, attachment: open_engine
if __name__ == "__main__":
    from server.cli import main
    main()
"""


def test_a_mistake_in_the_profile_ends_all_with_the_code_of_mistakes(redis: RedisServer, tmp_path: Path) -> None:
    gateway = Workers(tmp_path, redis)
    (tmp_path / "main.py").write_text(OPENS_NO_ENGINE)
    assert 2 == code_of(gateway)
    assert "that is why" in gateway.log
    assert "Traceback" not in gateway.log


def test_a_signal_before_they_serve_ends_them_unheard(redis: RedisServer, tmp_path: Path) -> None:
    """Nothing is under way yet, so nobody waits until they have come up, and none says that it is ready."""
    gateway = Workers(tmp_path, redis)
    gateway.start(waits=False)
    try:
        processes = wait_for(lambda: found if len(found := gateway.processes) == 2 else None)
        for process in processes:
            process.suspend()  # as one that reads in a large library
        gateway.send(signal.SIGTERM)

        assert 0 == gateway.wait_code()
        assert [] == psutil.wait_procs(processes, timeout=10)[1]
        assert "stopping" in gateway.log
        assert "base URL" not in gateway.log
    finally:
        gateway.kill()


def test_one_that_can_not_start_ends_all_with_its_message(redis: RedisServer, tmp_path: Path) -> None:
    gateway = Workers(tmp_path, redis)
    gateway.write(storage={**gateway.settings["storage"], "ledger_url": f"sqlite:///{tmp_path}"})  # which is a folder
    assert 1 == code_of(gateway)
    assert str(tmp_path) in gateway.log
