"""A gateway with several workers, as clients and operators see it: one gateway."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.metrics import catalog
from tests.services.gateway import ADMIN_KEY, ROOT, GatewayProcess, running
from tests.services.redis import RedisServer, own_redis
from tests.wire.customers import END, Customer, ledger_rows, wait_for

KEY = "k3gw-workers-key-0123456789"
SCRIPT = [
    {"when": {"contains": "hold"}, "reply": [{"text": "Hello"}, "hang"]},
    {"when": {"contains": "wait"}, "reply": [{"text": "Hello"}, {"wait_ms": 4000}, {"text": "!"}, *END]},
    {"reply": [{"text": "yes"}, *END]},
]
PATIENT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from server.admission.redis_store import RedisStore
RedisStore.__init__.__kwdefaults__.update(deadline_s=10.0, lease_s=25.0, renew_s=8.0)
if __name__ == "__main__":
    from server.cli import main
    main()
"""
"""The command, which waits long for Redis, as the machine may be busy; each worker imports it, too."""

TENANTS = {
    "default": {"limits": {"requests_per_minute": 10**6, "concurrent_requests": 10**4}},
    "hammered": {"limits": {"requests_per_minute": 100}},
    "crowded": {"limits": {"concurrent_requests": 5}},
    "broke": {"budget": {"tokens_per_day": 4000}},
    "leaver": {},
    "held": {},
}


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    yield from own_redis()


class Workers(GatewayProcess):
    """A gateway with so many workers. Customers of it say who asks; their client is closed, as each request has its connection."""

    def __init__(self, folder: Path, redis: RedisServer, count: int = 2, *, drain_timeout_s: int = 30, **tenancy: Any) -> None:
        redis.client.flushall()
        storage = {"ledger_url": f"sqlite:///{folder}/gateway.db", "spool_path": f"{folder}/spool", "limits_away": "closed"}
        super().__init__(
            folder,
            SCRIPT,
            http={"port": 0, "workers": count, "drain_timeout_s": drain_timeout_s},
            storage={**storage, "limits_url": redis.url},
            tenancy={"admin_key": ADMIN_KEY, **(tenancy or {"key": KEY})},
            tenants=TENANTS,
        )
        self._command[1:3] = [str(folder / "main.py")]
        (folder / "main.py").write_text(PATIENT)
        self.count = count
        self.ledger = f"{folder}/gateway.db"
        self.headers = {"authorization": f"Bearer {KEY}"}

    @property
    def processes(self) -> list[psutil.Process]:
        """The workers', in their order."""
        assert self._process is not None
        children = psutil.Process(self._process.pid).children()
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]

    def get(self, path: str, **headers: str) -> httpx.Response:
        """By a connection of its own, which any worker may get."""
        return httpx.get(f"{self.url}{path}", headers=headers or self.admin, timeout=30)

    def customer(self, tenant: str) -> Customer:
        with httpx.Client() as http:
            customer = Customer(http, self.url, tenant, self.key_of(http, tenant))
        wait_for(lambda: {200} == {self.get("/v1/models", **customer.headers).status_code for _ in range(8)})
        return customer

    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        families = text_string_to_metric_families(self.get("/metrics").text)
        found = [sample for family in families for sample in family.samples]
        values = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in found}
        assert len(found) == len(values), "a series is told twice"
        return values

    def sum(self, name: str, **labels: str) -> float:
        wanted = labels.items()
        return sum(value for (found, of), value in self.samples().items() if found == name and wanted <= dict(of).items())

    def wait_code(self) -> int:
        assert self._process is not None
        return self._process.wait(30)


@pytest.fixture(scope="module")
def workers(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    gateway = Workers(tmp_path_factory.mktemp("workers"), redis)
    with running(gateway):
        yield gateway


async def ask(customer: Customer, text: str = "hi", **fields: Any) -> httpx.Response:
    """Over a connection of its own."""
    async with httpx.AsyncClient(timeout=60) as client:
        url = f"{customer.url}/v1/chat/completions"
        return await client.post(url, json=customer.body(text, **fields), headers=customer.headers)


async def ask_many(customer: Customer, count: int, text: str = "hi") -> Counter[int]:
    """So many at once; how many had which status."""
    answers = await asyncio.gather(*(ask(customer, text, stream=number % 2 == 0) for number in range(count)))
    return Counter(answer.status_code for answer in answers)


def by_worker(gateway: Workers, customer: Customer) -> set[tuple[str, ...]]:
    """The requests that each worker's engine was asked for this tenant, as far as one finds them in some tries."""
    found = set()
    for _ in range(40):
        requests = gateway.get("/debug/engine", **customer.headers).json()["requests"]
        found.add(tuple(request["request_id"].split(":")[1] for request in requests))
    return found


async def test_all_serve_and_their_figures_add_up(workers: Workers) -> None:
    customer = workers.customer("default")
    before = workers.sum("k3gw_requests_total", tenant="default", outcome="finished")
    assert Counter({200: 60}) == await ask_many(customer, 60)

    shares = by_worker(workers, customer)
    assert 2 == len(shares), "both were asked"
    assert all(len(share) > 5 for share in shares), "and neither for nearly all"
    rows = wait_for(lambda: ledger_rows(workers.ledger, "default"), lambda rows: len(rows) >= 60)
    assert {row["request_id"] for row in rows} == {request_id for share in shares for request_id in share}
    scrapes = [workers.samples() for _ in range(6)]
    who = (("model", "kimi-k3"), ("tenant", "default"))
    for scrape in scrapes:
        told = [scrape["k3gw_tokens_total", (("kind", kind), *who)] for kind in ("input", "cached_input", "output")]
        assert told == [sum(row[name] for row in rows) for name in ("input_tokens", "cached_tokens", "output_tokens")]
        assert before + 60 == scrape["k3gw_request_seconds_count", who]
        assert 2 * 256 == scrape["k3gw_engine_seats", ()], "each has an engine of its own"
    series = set(scrapes[0])
    assert all(series == set(scrape) for scrape in scrapes), "whichever worker answers"


def test_a_scrape_has_each_metric_of_the_catalog_once(workers: Workers) -> None:
    types = re.findall(r"^# TYPE (\S+) (\S+)$", workers.get("/metrics").text, re.MULTILINE)

    assert sorted((catalog.PREFIX + metric.name, metric.kind) for metric in catalog.CATALOG) == sorted(types)


async def test_limits_are_those_of_all_workers_together(workers: Workers) -> None:
    hammered, crowded = workers.customer("hammered"), workers.customer("crowded")
    statuses = await ask_many(hammered, 140)
    assert ({200, 429}, 140) == (set(statuses), statuses.total())
    assert 100 == statuses[200]

    with ExitStack() as streams:
        for _ in range(5):
            http = streams.enter_context(httpx.Client(timeout=60))
            streams.enter_context(Customer(http, workers.url, "crowded", crowded.key).stream("hold"))
        assert Counter({429: 12}) == await ask_many(crowded, 12)
    await asyncio.to_thread(
        wait_for,
        lambda: (
            200 == httpx.post(f"{workers.url}/v1/chat/completions", json=crowded.body("hi"), headers=crowded.headers).status_code
        ),
    )


async def test_a_budget_is_spent_once(workers: Workers) -> None:
    customer = workers.customer("broke")
    num_served = 0
    while served := (await ask_many(customer, 12))[200]:
        num_served += served

    rows = wait_for(
        lambda: ledger_rows(workers.ledger, "broke"),
        lambda rows: sum(1 for row in rows if row["outcome"] == "finished") >= num_served,
    )
    finished = [row["input_tokens"] + row["output_tokens"] for row in rows if row["outcome"] == "finished"]
    assert num_served == len(finished)
    assert 4000 - max(finished) - 100 <= sum(finished) <= 4000
    assert Counter({429: 8}) == await ask_many(customer, 8)


def test_a_key_that_is_revoked_opens_nothing_anywhere_within_a_second(workers: Workers) -> None:
    customer = workers.customer("leaver")
    keys = workers.get("/admin/v1/keys").json()["data"]
    (key_id,) = [key["id"] for key in keys if key["tenant"] == "leaver"]
    assert httpx.delete(f"{workers.url}/admin/v1/keys/{key_id}", headers=workers.admin).is_success
    revoked_s = last_s = time.monotonic()
    num_refused = 0
    while num_refused < 16:
        begun_s = time.monotonic()
        if workers.get("/v1/models", **customer.headers).status_code == 200:
            num_refused, last_s = 0, begun_s
        else:
            num_refused += 1

    assert last_s - revoked_s < 1


def test_what_is_under_way_is_told_of_all_whoever_is_asked(workers: Workers) -> None:
    customer = workers.customer("held")
    with ExitStack() as streams:
        for _ in range(7):
            http = streams.enter_context(httpx.Client(timeout=60))
            streams.enter_context(Customer(http, workers.url, "held", customer.key).stream("hold"))
        status = [workers.get("/admin/v1/status").json() for _ in range(6)]
        pages = [workers.get("/dashboard/figures?filter=held").json() for _ in range(6)]
        inflight = [workers.sum("k3gw_inflight_requests", tenant="held") for _ in range(6)]

    assert {("ready", 2, 7, 7)} == {
        (one["status"], one["workers"], one["seated_requests"], one["engine_running_requests"]) for one in status
    }
    assert {(1, 512, 7)} == {
        (len({page["epoch"] for page in pages}), page["seats"], page["replica"]["seated_requests"]) for page in pages
    }
    assert {7} == {page["tenants"]["rows"][0]["running"] for page in pages}
    assert [7] * 6 == inflight


def test_a_hangup_reaches_all(workers: Workers) -> None:
    other = "another-admin-key-0123456789"
    workers.write(tenancy={"admin_key": other, "key": KEY})
    workers.send(signal.SIGHUP)
    try:
        wait_for(
            lambda: {200} == {workers.get("/admin/v1/status", authorization=f"Bearer {other}").status_code for _ in range(8)}
        )
        assert {401} == {workers.get("/admin/v1/status").status_code for _ in range(8)}
    finally:
        workers.write(tenancy={"admin_key": ADMIN_KEY, "key": KEY})
        workers.send(signal.SIGHUP)
        wait_for(lambda: {200} == {workers.get("/admin/v1/status").status_code for _ in range(8)})


def test_a_port_that_is_taken_is_not_shared(workers: Workers, redis: RedisServer, tmp_path: Path) -> None:
    port = urlsplit(workers.url).port
    second = Workers(tmp_path, redis)
    second.write(http={"port": port, "workers": 2})
    second.start(waits=False)

    assert 2 == second.wait_code()
    wait_for(lambda: f"can't listen on 127.0.0.1:{port}" in second.log)
    second.kill()


def test_limits_in_memory_are_a_mistake_that_names_its_cure(workers: Workers, redis: RedisServer, tmp_path: Path) -> None:
    second = Workers(tmp_path, redis)
    second.write(storage={"limits_url": "memory://"})
    second.start(waits=False)

    assert 2 == second.wait_code()
    wait_for(lambda: "redis://" in second.log)
    assert all(word in second.log for word in ("http.workers", "storage.limits_url", "memory://"))
    second.kill()


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
    outcomes = Counter(row["outcome"] for row in ledger_rows(gateway.ledger))
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
def test_a_death_ends_everything_within_a_second(redis: RedisServer, tmp_path: Path, dies: str) -> None:
    gateway = Workers(tmp_path, redis)
    with running(gateway):
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

        assert took_s < 1
        told = [end for end in ends if b"engine_dead" in end]
        assert all(b"[DONE]" not in end for end in ends)
        assert len(told) == 12 if dies == "the supervisor" else 0 < len(told) < 12
        assert (1 if dies == "a worker" else -signal.SIGKILL) == code
        assert not any(process.is_running() for process in processes)
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
    outcomes = Counter(row["outcome"] for row in ledger_rows(gateway.ledger))
    assert 6 == outcomes.total()


def test_one_that_can_not_start_ends_all_with_its_message(redis: RedisServer, tmp_path: Path) -> None:
    gateway = Workers(tmp_path, redis)
    gateway.write(storage={**gateway.settings["storage"], "ledger_url": f"sqlite:///{tmp_path}"})  # which is a folder
    gateway.start(waits=False)
    try:
        code = gateway.wait_code()
    finally:
        gateway.kill()

    assert code in (1, 2)
    assert str(tmp_path) in gateway.log
