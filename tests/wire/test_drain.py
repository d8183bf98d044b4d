"""A gateway that is to stop, as clients see it: nothing that has begun is lost, and nobody comes back over a connection that was kept."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from bench.drain import END, drain
from bench.ending_load import UNREACHABLE, WHOLE, Clients, fates
from server.app import create_app
from server.engine.base import Engine
from server.gateway import Gateway
from server.settings import Settings
from tests.services.gateway import ADMIN_KEY, GatewayProcess, running
from tests.services.postgres import postgres_server
from tests.store.conftest import own_postgres
from tests.wire.customers import kept_rows, wait_for
from tests.wire.test_killed import LockedFile, StoppedServer, Store

__all__ = ["own_postgres", "postgres_server"]

KEY = "k3gw-drain-key-0123456789"
SCRIPT = [
    {"when": {"contains": "hold"}, "reply": [{"text": "Hello"}, "hang"]},
    {"when": {"contains": "wait"}, "reply": [{"text": "Hello"}, {"wait_ms": 2000}, {"text": "!"}, *END]},
    {"when": {"contains": "die"}, "reply": [{"text": "Hello"}, "die"]},
    {"reply": [{"text": "yes"}, *END]},
]
both_ways = pytest.mark.parametrize("stream", [False, True])


class Draining:
    """A gateway of the test's own, and clients of it."""

    def __init__(self, folder: Path, *, drain_timeout_s: int = 30, seats: int = 256, **settings: Any) -> None:
        self.folder = folder
        engine = {"kind": "scripted", "script": f"{folder}/script.json", "overrides": {"seats": seats}}
        http = {"port": 0, "drain_timeout_s": drain_timeout_s}
        tenancy = {"key": KEY, "admin_key": ADMIN_KEY}
        limits = {"default": {"limits": {"requests_per_minute": 10**6, "concurrent_requests": 10**4}}}
        self.process = GatewayProcess(folder, SCRIPT, engine=engine, http=http, tenancy=tenancy, tenants=limits, **settings)

    @property
    def clients(self) -> Clients:
        port = urlsplit(self.process.url).port
        assert port is not None
        return Clients(port, KEY)

    def stop(self) -> None:
        """Ask it to; returns once it says that it does."""
        self.process.send(signal.SIGTERM)
        wait_for(lambda: "stopping: answers under way" in self.process.log)

    def connect(self) -> socket.socket:
        address = urlsplit(self.process.url)
        return socket.create_connection((address.hostname, address.port), timeout=30)

    def num_said(self) -> list[int]:
        """By the engine, to each request."""
        headers = {"authorization": f"Bearer {KEY}"}
        found = httpx.get(f"{self.process.url}/debug/engine", headers=headers).json()["requests"]
        return [entry["num_generated_tokens"] for entry in found]

    def rows(self) -> dict[str, str]:
        """Outcomes by the requests' names."""
        return {row["request_id"]: row["outcome"] for row in kept_rows(self.folder)}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Draining]:
    gateway = Draining(tmp_path)
    with running(gateway.process):
        yield gateway


def chat(text: str, *, stream: bool = False) -> bytes:
    """A request, which does not say what becomes of its connection."""
    body = {"model": "kimi-k3", "messages": [{"role": "user", "content": text}], "thinking": {"type": "disabled"}}
    content = json.dumps({**body, "stream": stream}).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: x", f"authorization: Bearer {KEY}", f"content-length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


def answer_on(connection: socket.socket) -> tuple[int, bool]:
    """The status of what comes until the gateway closes the connection, and whether it said that it would."""
    received = b""
    while piece := connection.recv(65536):
        received += piece
    head = received.partition(b"\r\n\r\n")[0].lower()
    return int(head[9:12]), b"\r\nconnection: close" in head


async def test_a_drain_under_load_loses_nothing(tmp_path: Path) -> None:
    """200 streams run and 50 requests a second arrive, before and until the process is gone."""
    done = await drain(tmp_path, num_streams=200, rate_per_s=50)

    assert min(request.ended_s for request in done.streams) > done.began_s, "none has ended before"
    assert {WHOLE: 200} == fates(done.streams)
    assert fates(done.arrived).keys() <= {WHOLE, "draining", UNREACHABLE}
    assert {WHOLE} == {request.fate for request in done.arrived if request.ended_s < done.began_s}
    refused = [request for request in done.arrived if request.fate == "draining"]
    assert len(refused) > 20
    assert {(503, True, True)} == {(request.status, request.closes, (request.retry_after_s or 0) > 0) for request in refused}
    assert 0 == done.num_rows_lost
    assert 0 == done.exit_code
    late = {request.fate for request in done.arrived if request.sent_s > done.began_s + done.unready_s}
    assert "draining" in late
    assert WHOLE not in late


def test_a_connection_does_not_outlive_its_answer(gateway: Draining) -> None:
    with (
        gateway.connect() as idle,
        gateway.connect() as whole,
        gateway.connect() as streamed,
        gateway.connect() as unused,
        gateway.connect() as late,
    ):
        idle.sendall(b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n")
        received = b""
        while not received.endswith(b'{"status":"ready"}'):
            received += idle.recv(65536)
        whole.sendall(chat("wait"))
        streamed.sendall(chat("wait", stream=True))
        late.sendall(chat("hi")[:40])
        wait_for(lambda: gateway.num_said() == [5, 5])
        gateway.stop()
        assert b"" == idle.recv(65536), "its client would come back here"
        for connection, rest in ((unused, chat("hi")), (late, chat("hi")[40:])):
            connection.sendall(rest)
            assert (503, True) == answer_on(connection)
        with gateway.connect() as new:
            new.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (200, True) == answer_on(new)
        assert (200, True) == answer_on(whole)
        assert (200, False) == answer_on(streamed), "its head had gone before"
    assert 0 == gateway.process.end(signal.SIGCONT), gateway.process.log


def test_the_admin_api_drains_as_a_signal_does(gateway: Draining) -> None:
    with gateway.connect() as streamed:
        streamed.sendall(chat("wait", stream=True))
        wait_for(lambda: gateway.num_said() == [5])
        assert 202 == httpx.post(f"{gateway.process.url}/admin/v1/drain", headers=gateway.process.admin).status_code
        assert 503 == httpx.get(f"{gateway.process.url}/ready").status_code
        assert (200, False) == answer_on(streamed)
    assert 0 == gateway.process.end(signal.SIGCONT), gateway.process.log
    assert ["finished"] == list(gateway.rows().values())


async def test_what_waits_for_a_seat_is_served(tmp_path: Path) -> None:
    """It has its place: elsewhere it would begin at the end of a queue."""
    gateway = Draining(tmp_path, seats=1)
    with running(gateway.process):
        clients = gateway.clients
        async with asyncio.TaskGroup() as tasks:
            for number in range(3):
                tasks.create_task(clients.ask(f"r-{number}", "wait", stream=number != 1))
            await asyncio.to_thread(wait_for, lambda: gateway.num_said() == [5])
            await asyncio.to_thread(wait_for, lambda: queued(gateway) == 2)
            await asyncio.to_thread(gateway.stop)
        assert 0 == gateway.process.end(signal.SIGCONT), gateway.process.log
    assert [WHOLE] * 3 == [request.fate for request in clients.requests]
    assert {f"r-{number}": "finished" for number in range(3)} == gateway.rows()


def queued(gateway: Draining) -> int:
    status = httpx.get(f"{gateway.process.url}/admin/v1/status", headers=gateway.process.admin).json()
    return int(status["queued_requests"])


@both_ways
def test_nobody_waits_for_a_client_that_has_left(gateway: Draining, stream: bool) -> None:
    with gateway.connect() as stays, gateway.connect() as leaves:
        leaves.sendall(chat("hold", stream=stream))
        stays.sendall(chat("wait", stream=stream))
        wait_for(lambda: gateway.num_said() == [5, 5])
        gateway.stop()
        leaves.close()
        assert 200 == answer_on(stays)[0]
    begun_s = time.monotonic()
    assert 0 == gateway.process.end(signal.SIGCONT), gateway.process.log
    assert time.monotonic() - begun_s < 15, "the other would have hung for 30 s"
    assert ["cancelled", "finished"] == sorted(gateway.rows().values())


async def test_all_learn_at_once_that_the_engine_is_dead(gateway: Draining) -> None:
    clients = gateway.clients
    async with asyncio.TaskGroup() as tasks:
        for number in range(200):
            tasks.create_task(clients.ask(f"r-{number}", "hold", stream=number % 10 != 0))
        await asyncio.to_thread(wait_for, lambda: gateway.num_said().count(5) == 200)
        died = await clients.ask("the last", "die", stream=True)
    assert {"engine_dead": 201} == fates(clients.requests)
    assert {(200, True), (503, False)} == {(request.status, request.is_streamed) for request in clients.requests}
    assert max(request.ended_s for request in clients.requests) - died.begun_s < 10, (
        "a second, on a machine that has nothing else to do"
    )
    assert 1 == gateway.process.end(signal.SIGCONT), gateway.process.log
    assert {"engine_dead"} == set(gateway.rows().values())
    assert 201 == len(gateway.rows())


@pytest.fixture(params=["a locked file", "a stopped server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "a locked file":
        return LockedFile(tmp_path / "gateway.db")
    return StoppedServer(request.getfixturevalue("own_postgres"))


async def test_rows_that_the_store_does_not_take_wait_for_the_next_start(store: Store, tmp_path: Path) -> None:
    storage = {"ledger_url": store.url, "spool_path": str(tmp_path / "spool")}
    gateway = Draining(tmp_path, storage=storage)
    with running(gateway.process):
        clients = gateway.clients
        with store.unusable():
            async with asyncio.TaskGroup() as tasks:
                for number in range(8):
                    tasks.create_task(clients.ask(f"r-{number}", "wait" if number < 4 else "hi", stream=number % 2 == 0))
                await asyncio.to_thread(wait_for, lambda: len(gateway.num_said()) == 8)
                await asyncio.to_thread(gateway.stop)
            assert 0 == await asyncio.to_thread(gateway.process.end, signal.SIGCONT), gateway.process.log
            assert "ledger_not_flushed" in gateway.process.log
        assert {WHOLE: 8} == fates(clients.requests)
        gateway.process.start()
        rows = await asyncio.to_thread(wait_for, store.rows, lambda rows: len(rows) >= 8)
    assert {f"r-{number}": "finished" for number in range(8)} == {row.request_id: row.outcome for row in rows}


@pytest.mark.parametrize("num_signals", [1, 2])
def test_a_gateway_that_has_never_reached_its_store_stops(tmp_path: Path, num_signals: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    storage = {"ledger_url": f"postgresql://gateway:x@127.0.0.1:{port}/none", "spool_path": str(tmp_path / "spool")}
    gateway = Draining(tmp_path, storage=storage)
    try:
        gateway.process.start(waits=False)
        wait_for(lambda: "store_away" in gateway.process.log, timeout_s=60)
        for _ in range(num_signals):
            gateway.process.send(signal.SIGTERM)
        assert 0 == gateway.process.end(signal.SIGCONT), gateway.process.log
    finally:
        gateway.process.kill()
    assert "Traceback" not in gateway.process.log


async def test_an_engine_that_is_still_loading_is_not_waited_for() -> None:
    is_stopped = threading.Event()

    async def open_engine() -> Engine:
        try:
            await asyncio.Event().wait()
        finally:
            is_stopped.set()
        raise AssertionError

    app = create_app(Settings.model_validate({"engine": {"kind": "scripted"}, "tenancy": {"auth": "off"}}), open_engine)
    gateway: Gateway = app.state.gateway
    is_drained = asyncio.Event()
    gateway.on_drained = is_drained.set
    async with asyncio.timeout(20), app.router.lifespan_context(app):
        gateway.drain()
        await is_drained.wait()
    assert is_stopped.is_set()
    assert gateway.failure is None


def test_a_mistake_in_the_configuration_is_no_reason_to_start_again(tmp_path: Path) -> None:
    """A supervisor goes by the exit code: 2 stays what it is, 1 may work the next time."""
    gateway = Draining(tmp_path)
    gateway.process.write(tenancy={"no_such_setting": 1})
    gateway.process.start(waits=False)
    wait_for(lambda: "no_such_setting" in gateway.process.log, timeout_s=60)
    assert 2 == gateway.process.end(signal.SIGCONT)
