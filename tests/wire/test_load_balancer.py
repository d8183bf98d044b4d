"""Two gateways on one Redis and one PostgreSQL behind a real nginx, with the configuration that ships: one service, whatever is replaced."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.ending_load import WHOLE, Clients, Request, arrivals, fates
from server.store.database import Database
from server.usage.row import LedgerRow
from tests.services.gateway import ADMIN_KEY, GatewayProcess, running
from tests.services.nginx import free_port, nginx, program, write_config
from tests.services.postgres import Postgres, postgres_server
from tests.services.redis import RedisServer, own_redis
from tests.usage.conftest import rows_in
from tests.wire.customers import END, wait_for

__all__ = ["postgres_server"]

TIMING = {"deadline_s": 20.0, "lease_s": 25.0, "renew_s": 8.0}
"""A long deadline: the machine may be busy, and what is decided without Redis is not counted together."""
SCRIPT = [
    {"when": {"contains": "hold"}, "reply": [{"text": "Hello"}, "hang"]},
    {"when": {"contains": "long"}, "reply": [{"text": "Hello"}, {"wait_ms": 1500}, {"text": "!"}, *END]},
    {"reply": [{"text": "yes"}, {"wait_ms": 50}, {"text": "!"}, *END]},
]
TENANTS: dict[str, dict[str, Any]] = {
    "acme": {},
    "beta": {},
    "lost": {},
    "hammered": {"limits": {"requests_per_minute": 60}},
    "crowded": {"limits": {"concurrent_requests": 8}},
}
RATE_PER_S = 20


class Service:
    """What stands behind one address."""

    def __init__(self, folder: Path, redis: RedisServer, postgres: Postgres) -> None:
        self.folder = folder
        self.ledger_url = postgres.new_database()
        self.ports = [free_port(), free_port()]
        storage = {"ledger_url": self.ledger_url, "limits_url": redis.url, "limits_away": "closed"}
        engine = {"kind": "scripted", "script": f"{folder}/first/script.json"}
        self.gateways = [
            GatewayProcess(
                folder / name,
                SCRIPT,
                http={"port": port},
                engine=engine,
                storage={**storage, "spool_path": f"{folder}/{name}/spool"},
                tenants=TENANTS,
                timing=TIMING,
            )
            for name, port in zip(("first", "second"), self.ports, strict=True)
        ]
        self.port = 0

    def clients(self, tenant: str) -> Clients:
        """Of the whole service, with a key that all replicas know."""
        with httpx.Client(timeout=60) as http:
            key = self.gateways[0].key_of(http, tenant)
            for port in self.ports:
                url, headers = f"http://127.0.0.1:{port}/v1/models", {"authorization": f"Bearer {key}"}
                wait_for(lambda: http.get(url, headers=headers).is_success)  # noqa: B023
        return Clients(self.port, key)

    async def rows(self, tenant: str) -> list[LedgerRow]:
        database = await Database.open(self.ledger_url)
        try:
            return [row for row in await rows_in(database) if row.tenant == tenant]
        finally:
            await database.close()

    def told_of(self, requests: list[Request]) -> list[str]:
        """What nginx says of those that are not whole, and the replicas of themselves."""
        names = [request.name for request in requests if request.fate != WHOLE]
        lines = (self.folder / "nginx" / "access.log").read_text(encoding="utf-8").splitlines()
        warned = [line for gateway in self.gateways for line in gateway.lines if "warning" in line]
        return [line for line in lines if any(f" {name} " in line for name in names)] + warned

    def usage(self, replica: int) -> dict[str, dict[str, Any]]:
        """By tenant, as that replica tells it."""
        url, headers = f"http://127.0.0.1:{self.ports[replica]}/admin/v1/usage", {"authorization": f"Bearer {ADMIN_KEY}"}
        return {line["tenant"]: line for line in httpx.get(url, headers=headers).json()["data"]}


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    yield from own_redis()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, redis: RedisServer, postgres_server: Postgres) -> Iterator[Service]:
    program()
    folder = tmp_path_factory.mktemp("service")
    service = Service(folder, redis, postgres_server)
    (folder / "nginx").mkdir()
    with running(*service.gateways), nginx(folder / "nginx", service.ports) as service.port:
        yield service


async def until(is_so: Any) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)


async def replace(gateway: GatewayProcess) -> None:
    """By a signal, and a new process at the same address, which is waited for until it is ready."""
    assert 0 == await asyncio.to_thread(gateway.end), gateway.log
    await asyncio.to_thread(gateway.start)
    async with httpx.AsyncClient() as http, asyncio.timeout(60):
        while (await http.get(f"{gateway.url}/ready")).status_code != 200:
            await asyncio.sleep(0.02)


async def test_both_replicas_are_replaced_under_load_and_no_request_fails(service: Service) -> None:
    acme, beta = service.clients("acme"), service.clients("beta")
    is_over = False

    async def roll() -> None:
        nonlocal is_over
        for gateway in service.gateways:
            before = len(beta.requests)
            await until(lambda: sum(request.is_over for request in beta.requests) > before + 10)  # noqa: B023
            await replace(gateway)
        before = len(beta.requests)
        await until(lambda: sum(request.is_over for request in beta.requests) > before + 10)
        is_over = True

    async with asyncio.TaskGroup() as tasks:
        ask = lambda number: acme.ask(f"acme-{number}", "long" if number % 2 else "hi", stream=number % 4 < 2)  # noqa: E731
        tasks.create_task(arrivals(RATE_PER_S, ask, lambda: is_over))
        ask = lambda number: beta.ask(f"beta-{number}", "hi", stream=number % 2 == 0)  # noqa: E731
        tasks.create_task(arrivals(RATE_PER_S, ask, lambda: is_over))
        tasks.create_task(roll())

    for name, clients in (("acme", acme), ("beta", beta)):
        assert {WHOLE: len(clients.requests)} == fates(clients.requests), service.told_of(clients.requests)
        finished = [row for row in await all_rows(service, name, len(clients.requests)) if row.outcome == "finished"]
        assert Counter(request.name for request in clients.requests) == Counter(row.request_id for row in finished)
        others = [row for row in await service.rows(name) if row.outcome != "finished"]
        assert {"rejected"} >= {row.outcome for row in others}, "only asked in vain, and then elsewhere"
        assert 0 == sum(row.input_tokens + row.output_tokens + row.cost_nano_usd for row in others)
        for replica in (0, 1):
            line = service.usage(replica)[name]
            assert (len(finished), sum(row.output_tokens for row in finished)) == (line["finished"], line["output_tokens"])


async def all_rows(service: Service, tenant: str, num_finished: int) -> list[LedgerRow]:
    """Once so many have finished."""
    async with asyncio.timeout(20):
        while True:
            rows = await service.rows(tenant)
            if sum(row.outcome == "finished" for row in rows) >= num_finished:
                return rows
            await asyncio.sleep(0.05)


async def test_limits_are_those_of_one(service: Service) -> None:
    hammered, crowded = service.clients("hammered"), service.clients("crowded")
    async with asyncio.TaskGroup() as tasks:
        for number in range(150):
            tasks.create_task(hammered.ask(f"h-{number}", "hi", stream=number % 2 == 0))
    took_s = max(request.ended_s for request in hammered.requests) - hammered.requests[0].sent_s
    assert took_s < 50, "the minute was over before all had come"
    assert {WHOLE: 60, "rate_limit_exceeded": 90} == fates(hammered.requests)
    assert all(request.retry_after_s for request in hammered.requests if request.status == 429)

    tasks = [asyncio.ensure_future(crowded.ask(f"c-{number}", "hold", stream=True)) for number in range(20)]
    await until(lambda: all(request.is_begun for request in crowded.requests) and len(crowded.requests) == 20)
    assert {200: 8, 429: 12} == Counter(request.status for request in crowded.requests)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    both = [
        await asyncio.to_thread(lambda port=port: httpx.get(f"http://127.0.0.1:{port}/metrics").text) for port in service.ports
    ]
    served = [sum_of(text, "k3gw_requests_total{", 'tenant="hammered"', 'outcome="finished"') for text in both]
    assert 60 == sum(served)
    assert min(served) > 0, "one had nothing to do"


def sum_of(text: str, *parts: str) -> float:
    """The series that have all these parts, added up."""
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if all(part in line for part in parts))


async def test_without_a_replica_the_answer_is_still_the_apis(service: Service) -> None:
    key = service.clients("acme").key
    headers = {"authorization": f"Bearer {key}"}
    body = {"model": "kimi-k3", "messages": [{"role": "user", "content": "hi"}]}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.port}", timeout=60, headers=headers) as http:
        assert 404 == (await http.get("/metrics")).status_code
        assert 404 == (await http.get("/admin/v1/status")).status_code
        assert "not_found" == (await http.get("/")).json()["error"]["code"]
        too_large = await http.post("/v1/chat/completions", content=b"x" * (65 * 1024 * 1024))
        assert (413, "body_too_large") == (too_large.status_code, too_large.json()["error"]["code"])
        assert 200 == (await http.get("/ready")).status_code
        for gateway in service.gateways:
            gateway.kill()
        answer = await http.post("/v1/chat/completions", json=body)
        for gateway in service.gateways:
            await asyncio.to_thread(gateway.start)
        assert (503, "overloaded") == (answer.status_code, answer.json()["error"]["code"])
        assert int(answer.headers["retry-after"]) > 0


async def test_a_replica_that_is_killed_loses_what_had_begun_and_nothing_else(service: Service) -> None:
    """Whole answers are asked for again, elsewhere; streams of which a client has the beginning are cut off."""
    clients = service.clients("lost")
    async with asyncio.TaskGroup() as tasks:
        for number in range(40):
            tasks.create_task(clients.ask(f"r-{number}", "long", stream=number % 2 == 0))
        await until(lambda: sum(request.is_begun for request in clients.requests) == 20)
        await asyncio.to_thread(service.gateways[0].kill)
    await asyncio.to_thread(service.gateways[0].start)
    whole = [request.fate for request in clients.requests if not request.is_streamed]
    streamed = Counter(request.fate for request in clients.requests if request.is_streamed)
    assert [WHOLE] * 20 == whole
    assert 20 == streamed.total()
    assert streamed[WHOLE] > 0
    assert streamed.total() > streamed[WHOLE]


def test_the_configuration_is_one(tmp_path: Path) -> None:
    command = [program(), "-t", "-p", str(tmp_path), "-c", str(write_config(tmp_path, [1, 2], 3))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert 0 == done.returncode, done.stderr
    assert "warn" not in done.stderr
