"""Replicas that share their limits: together they admit what one would, whatever becomes of one of them, or of Redis."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import StartGateway
from tests.services.gateway import GatewayProcess, running
from tests.services.redis import RedisServer, own_redis
from tests.wire.customers import END, Customer, ledger_rows, wait_for

HOLD_S = 0.1
SCRIPT = [
    {"when": {"contains": "hold"}, "reply": [{"text": "Hello"}, "hang"]},
    {"when": {"contains": "wait"}, "reply": [{"text": "Hello"}, {"wait_ms": 1000 * HOLD_S}, {"text": "!"}, *END]},
    {"reply": [{"text": "yes"}, *END]},
]
SHORT_LEASE = {"deadline_s": 5.0, "lease_s": 3.0, "renew_s": 1.0}
"""Also a long deadline: the machine may be busy, and what is decided without Redis is not counted together."""
LONG_LEASE = {"deadline_s": 5.0, "lease_s": 25.0, "renew_s": 8.0}
LIMITS = {
    "hammered": {"requests_per_minute": 600},
    "crowded": {"concurrent_requests": 8},
    "churning": {"concurrent_requests": 8},
    "killed": {"concurrent_requests": 8},
}


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    yield from own_redis()


class Replicas:
    """Two gateways on one Redis and one store."""

    def __init__(self, folder: Path, redis: RedisServer, timing: dict[str, float]) -> None:
        storage = {"ledger_url": f"sqlite:///{folder}/gateway.db", "limits_url": redis.url, "limits_away": "closed"}
        tenants = {name: {"limits": limits} for name, limits in LIMITS.items()}
        self.gateways = [
            GatewayProcess(
                folder / name, SCRIPT, storage={**storage, "spool_path": f"{folder}/spool"}, tenants=tenants, timing=timing
            )
            for name in ("first", "second")
        ]

    def customers(self, http: httpx.Client, tenant: str) -> list[Customer]:
        """The tenant, at each of them, with one key."""
        key = self.gateways[0].key_of(http, tenant)
        customers = [Customer(http, gateway.url, tenant, key) for gateway in self.gateways]
        for customer in customers:
            wait_for(lambda: http.get(f"{customer.url}/v1/models", headers=customer.headers).is_success)  # noqa: B023
        return customers


@pytest.fixture(scope="module")
def replicas(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    replicas = Replicas(tmp_path_factory.mktemp("replicas"), redis, SHORT_LEASE)
    with running(*replicas.gateways):
        yield replicas


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as http:
        yield http


async def ask(client: httpx.AsyncClient, customer: Customer, text: str = "hi", **fields: Any) -> httpx.Response:
    return await client.post(f"{customer.url}/v1/chat/completions", json=customer.body(text, **fields), headers=customer.headers)


async def test_both_admit_together_what_one_would(replicas: Replicas, http: httpx.Client) -> None:
    customers = replicas.customers(http, "hammered")
    statuses: dict[str, Counter[int]] = {customer.url: Counter() for customer in customers}
    begun_s = time.monotonic()

    async def hammer(customer: Customer, number: int) -> None:
        seen = statuses[customer.url]
        while seen[429] < 60:
            seen[(await ask(client, customer, stream=number % 2 == 0)).status_code] += 1

    async with httpx.AsyncClient(timeout=60) as client, asyncio.TaskGroup() as tasks:
        for number in range(24):
            tasks.create_task(hammer(customers[number % 2], number))
    took_s = time.monotonic() - begun_s

    assert took_s < 60, "the minute was over before the limit was reached"
    assert {status for seen in statuses.values() for status in seen} == {200, 429}
    assert 599 <= sum(seen[200] for seen in statuses.values()) <= 601
    assert all(seen[200] > 60 for seen in statuses.values())


async def test_no_more_run_at_once_than_may(replicas: Replicas, http: httpx.Client) -> None:
    """Streams that stay: as many as the limit says, and another for each that goes."""
    customers = replicas.customers(http, "crowded")
    url = "/v1/chat/completions"
    async with httpx.AsyncClient(timeout=60) as client, AsyncExitStack() as streams:

        async def begin(number: int) -> AsyncExitStack | None:
            customer, stack = customers[number % 2], AsyncExitStack()
            body = customer.body("hold", stream=True)
            request = client.stream("POST", customer.url + url, json=body, headers=customer.headers)
            response = await stack.enter_async_context(request)
            if response.status_code == 200:
                return stack
            assert (response.status_code, int(response.headers["retry-after"]) > 0) == (429, True)
            await stack.aclose()
            return None

        async def begin_many(num: int) -> list[AsyncExitStack]:
            found = await asyncio.gather(*(begin(number) for number in range(num)))
            return [await streams.enter_async_context(stack) for stack in found if stack is not None]

        first = await begin_many(40)
        none = await begin_many(10)
        for stack in first[:3]:
            await stack.aclose()
        later: list[AsyncExitStack] = []
        async with asyncio.timeout(20):
            while len(later) < 3:
                later += await begin_many(10)
        none += await begin_many(10)
        assert (len(first), len(later), none) == (8, 3, [])


async def test_no_more_run_at_once_while_they_come_and_go(replicas: Replicas, http: httpx.Client) -> None:
    """Between its first byte and the earliest moment at which it can end, each holds a slot."""
    customers = replicas.customers(http, "churning")
    held: list[tuple[float, int]] = []
    num_refused = 0

    async def come_and_go(customer: Customer) -> None:
        nonlocal num_refused
        for _ in range(8):
            sent_s = time.monotonic()
            body = customer.body("wait", stream=True)
            url = f"{customer.url}/v1/chat/completions"
            async with client.stream("POST", url, json=body, headers=customer.headers) as response:
                if response.status_code == 429:
                    num_refused += 1
                    await asyncio.sleep(HOLD_S / 4)
                    continue
                pieces = response.aiter_raw()
                await anext(pieces)
                begun_s = time.monotonic()
                rest = b"".join([piece async for piece in pieces])
            assert rest.endswith(b"data: [DONE]\n\n")
            if begun_s < sent_s + HOLD_S:
                held.extend([(begun_s, 1), (sent_s + HOLD_S, -1)])

    async with httpx.AsyncClient(timeout=60) as client, asyncio.TaskGroup() as tasks:
        for number in range(32):
            tasks.create_task(come_and_go(customers[number % 2]))
    most = num = 0
    for _, change in sorted(held):
        num += change
        most = max(most, num)

    assert 4 <= most <= 8
    assert num_refused > 10
    await until_free(customers)


async def until_free(customers: list[Customer]) -> None:
    """Until nothing of the tenant counts as running any more."""
    async with httpx.AsyncClient(timeout=60) as client, asyncio.timeout(40):
        while True:
            answers = await asyncio.gather(*(ask(client, customers[number % 2], "wait") for number in range(8)))
            if all(answer.status_code == 200 for answer in answers):
                return


def check_that_slots_of_the_killed_come_back(replicas: Replicas, http: httpx.Client, most_s: float) -> None:
    first, second = replicas.customers(http, "killed")
    with ExitStack() as own:
        for _ in range(3):
            own.enter_context(second.stream("hold"))
        with ExitStack() as lost:
            for _ in range(5):
                lost.enter_context(first.stream("hold"))
            assert [customer.chat().status for customer in (first, second)] == [429, 429]
            replicas.gateways[0].kill()
            killed_s = time.monotonic()
        assert second.chat().status == 429
        for _ in range(5):
            wait_for(lambda: second.chat().status == 200, timeout_s=most_s)
            own.enter_context(second.stream("hold"))
        came_back_s = time.monotonic() - killed_s
        assert second.chat().status == 429, "what runs at the living one lost its slots, too"
        assert came_back_s < most_s
        replicas.gateways[0].start()


def test_slots_of_a_killed_replica_come_back(replicas: Replicas, http: httpx.Client) -> None:
    check_that_slots_of_the_killed_come_back(replicas, http, 10.0)


@pytest.mark.long
def test_slots_of_a_killed_replica_come_back_within_half_a_minute(redis: RedisServer, tmp_path: Path, http: httpx.Client) -> None:
    replicas = Replicas(tmp_path, redis, LONG_LEASE)
    with running(*replicas.gateways):
        check_that_slots_of_the_killed_come_back(replicas, http, 30.0)


@pytest.fixture
def mortal_redis() -> Iterator[RedisServer]:
    yield from own_redis()


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_redis_goes_and_limits_are_kept_here(
    start_gateway: StartGateway, mortal_redis: RedisServer, http: httpx.Client, how: str
) -> None:
    redis = mortal_redis
    gateway = start_gateway(
        SCRIPT,
        storage={"limits_url": redis.url, "limits_away": "open"},
        tenants={"acme": {"limits": {"requests_per_minute": 40, "concurrent_requests": 3}}},
    )
    customer = Customer(http, gateway.url, "acme", gateway.key_of("acme"))
    assert customer.chat().status == 200
    with customer.stream("wait") as pieces:
        take_away(redis, how)
        statuses = [customer.chat(stream=number % 2 == 0).status for number in range(20)]
        assert statuses == [200] * 20
        assert b"".join(pieces).endswith(b"data: [DONE]\n\n")
    with customer.stream("hold"), customer.stream("hold"), customer.stream("hold"):
        assert customer.chat().status == 429, "what runs here is counted here"
    assert http.get(f"{gateway.url}/ready").status_code == 200
    bring_back(redis, how)
    wait_for(lambda: not gateway.gateway.limits.is_away)
    wait_for(lambda: customer.chat().status == 200)
    assert "x-ratelimit-remaining-requests" in customer.chat().headers


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_redis_goes_and_everything_is_refused(
    start_gateway: StartGateway, mortal_redis: RedisServer, http: httpx.Client, how: str
) -> None:
    """At once, with the time to try again; what runs goes on."""
    redis = mortal_redis
    gateway = start_gateway(
        SCRIPT,
        storage={"limits_url": redis.url, "limits_away": "closed"},
        tenants={"acme": {"limits": {"requests_per_minute": 600}}},
    )
    customer = Customer(http, gateway.url, "acme", gateway.key_of("acme"))
    assert customer.chat().status == 200
    with customer.stream("wait") as pieces:
        take_away(redis, how)
        seconds: list[float] = []
        for number in range(20):
            begun_s = time.monotonic()
            answer = customer.chat(stream=number % 2 == 0)
            seconds.append(time.monotonic() - begun_s)
            assert answer.outcome == (503, "limits_unavailable")
            assert answer.retry_after_s >= 1
        assert b"".join(pieces).endswith(b"data: [DONE]\n\n")
    assert statistics.median(seconds) < 1
    assert max(seconds) < 20, "it hangs"
    assert http.get(f"{gateway.url}/ready").status_code == 503
    bring_back(redis, how)
    wait_for(lambda: customer.chat().status == 200)
    path = f"{gateway.folder.name}/gateway.db"
    outcomes = Counter(row["outcome"] for row in wait_for(lambda: ledger_rows(path, "acme"), lambda rows: len(rows) >= 23))
    assert outcomes["rejected"] >= 20


def take_away(redis: RedisServer, how: str) -> None:
    redis.stop() if how == "killed" else redis.freeze()


def bring_back(redis: RedisServer, how: str) -> None:
    redis.start() if how == "killed" else redis.thaw()
