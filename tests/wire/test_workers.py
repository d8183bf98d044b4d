"""A gateway with several workers, as clients and operators see it: one gateway."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from server.metrics import catalog
from tests.services.gateway import ADMIN_KEY, running
from tests.services.redis import RedisServer, own_redis
from tests.services.workers import KEY, Workers, ask_many, by_worker
from tests.wire.customers import Customer, ledger_rows, wait_for


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    yield from own_redis()


@pytest.fixture(scope="module")
def workers(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    gateway = Workers(tmp_path_factory.mktemp("workers"), redis)
    with running(gateway):
        yield gateway


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
    assert num_served == Counter(row["outcome"] for row in rows)["finished"]
    spent = [row["input_tokens"] + row["output_tokens"] for row in rows]  # also for what was ended because nothing was left
    assert 4000 - max(spent) - 100 <= sum(spent) <= 4000
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

    assert last_s - revoked_s < 10, "a second, on a machine that has nothing else to do"


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
