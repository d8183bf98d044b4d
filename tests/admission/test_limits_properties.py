"""Limits against a naive model of them, in random walks; and what is left of random requests: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.admission.limits import Usage
from server.admission.ticket import Ticket
from server.context import Budget, Limits, Tenant
from server.errors import InsufficientQuotaError, InvalidRequestError, RateLimitError
from tests.admission.gates import NOW_S, PAID, Gate, manual_time, memory_gate, redis_gate
from tests.services.redis import RedisServer, own_redis

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.sampled_from([1, 2, 8, 40, 200, 479, 480, 481])),
        st.tuples(st.just("reserve"), st.integers(1, 120), st.integers(1, 200)),
        st.tuples(st.just("retry"), st.integers(1, 120), st.integers(1, 200)),
        st.tuples(st.just("prefilled"), st.integers(0, 9), st.integers(0, 100)),
        st.tuples(st.just("settle"), st.integers(0, 9), st.integers(0, 100)),
        st.tuples(st.just("lower"), st.integers(1, 6)),
    ),
    max_size=60,
)
PER_MINUTE = (6, 300, 200, 400)
LIMITS = Limits(*PER_MINUTE, concurrent_requests=4)
BUDGET = Budget(tokens_per_day=1500, tokens_per_month=2500, nano_usd_per_day=12_000, nano_usd_per_month=30_000)


@dataclass
class Request:
    """One admitted request, as the naive model remembers it."""

    at_s: float
    minute: list[int]
    day: int
    month: str
    tokens: int
    nano_usd: int
    granted: int
    is_running: bool = True
    num_cached: int = 0
    ticket: Ticket | None = None


@dataclass
class Naive:
    """A list of requests, and sums over it."""

    slot_s: float
    requests: list[Request] = field(default_factory=list)

    def minute(self, kind: int, now_s: float) -> int:
        return sum(request.minute[kind] for request in self.requests if now_s - request.at_s < 60 + self.slot_s)

    def spent(self, now_s: float) -> tuple[int, int, int, int]:
        of_day = [request for request in self.requests if request.day == _day(now_s)]
        of_month = [request for request in self.requests if request.month == _month(now_s)]
        return (
            sum(request.tokens for request in of_day),
            sum(request.tokens for request in of_month),
            sum(request.nano_usd for request in of_day),
            sum(request.nano_usd for request in of_month),
        )

    def reserve(self, limits: Limits, num_input: int, num_output: int, now_s: float) -> Request | None:
        amounts = [1, num_input, min(num_input, PER_MINUTE[2]), min(num_output, PER_MINUTE[3])]
        most = (limits.requests_per_minute or 0, *PER_MINUTE[1:])
        if any(self.minute(kind, now_s) + amounts[kind] > most[kind] for kind in range(4)):
            return None
        if sum(request.is_running for request in self.requests) >= (limits.concurrent_requests or 0):
            return None
        day_tokens, month_tokens, day_nano_usd, month_nano_usd = self.spent(now_s)
        granted = 0
        while granted < num_output:
            tokens, nano_usd = num_input + granted + 1, 3 * num_input + 15 * (granted + 1)
            if day_tokens + tokens > 1500 or month_tokens + tokens > 2500:
                break
            if day_nano_usd + nano_usd > 12_000 or month_nano_usd + nano_usd > 30_000:
                break
            granted += 1
        if granted == 0:
            return None
        cost = 3 * num_input + 15 * granted
        request = Request(now_s, amounts, _day(now_s), _month(now_s), num_input + granted, cost, granted)
        self.requests.append(request)
        return request


def _day(now_s: float) -> int:
    return int(now_s // 86400)


def _month(now_s: float) -> str:
    return "november" if now_s < NOW_S + 12 * 3600 else "december"


async def walk(gate: Gate, steps: list[Any]) -> None:
    naive, limits = Naive(gate.slot_s), LIMITS
    gate.set_time(NOW_S + 12 * 3600 - 90)
    for step in steps:
        now_s = gate.clock.now_s
        match step:
            case ("advance", num_slots):
                gate.advance(num_slots * gate.slot_s)
            case ("lower", num_requests):
                limits = Limits(num_requests, *PER_MINUTE[1:], concurrent_requests=4)
            case ("reserve" | "retry" as what, num_input, num_output):
                who = Tenant("acme", limits=limits, budget=BUDGET)
                expected = naive.reserve(limits, num_input, num_output, now_s)
                try:
                    ticket = await gate.reserve(who, num_input, num_output, model=PAID)
                except RateLimitError as error:
                    if expected is not None:
                        raise
                    is_full = sum(request.is_running for request in naive.requests) >= 4
                    if what == "retry" and not is_full:
                        gate.advance(error.retry_after_s or 0)
                        again = naive.reserve(limits, num_input, num_output, gate.clock.now_s)
                        assert again is not None
                        again.ticket = await gate.reserve(who, num_input, num_output, model=PAID)
                else:
                    assert expected is not None
                    expected.ticket = ticket
            case ("prefilled", index, num_cached):
                if index < len(naive.requests) and (request := naive.requests[index]).is_running and not request.num_cached:
                    num_cached = min(num_cached, request.minute[1])
                    assert request.ticket is not None
                    request.ticket.prefilled(num_cached)
                    request.num_cached = num_cached
                    request.minute[2] = request.minute[1] - num_cached
                    cost = PAID.price.nano_usd(request.minute[1], num_cached, 0)
                    request.nano_usd = cost + 15 * request.granted
            case ("settle", index, num_output):
                if index < len(naive.requests) and (request := naive.requests[index]).is_running:
                    num_input, num_output = request.minute[1], min(num_output, request.granted)
                    cost = PAID.price.nano_usd(num_input, request.num_cached, num_output)
                    assert request.ticket is not None
                    request.ticket.settle(Usage(num_input, request.num_cached, num_output, cost))
                    request.minute[3] = num_output
                    request.tokens, request.nano_usd = num_input + num_output, cost
                    request.is_running = False
    now_s = gate.clock.now_s
    await gate.told()
    who = Tenant("acme", limits=limits, budget=BUDGET)
    with contextlib.suppress(RateLimitError, InvalidRequestError):
        await gate.reserve(Tenant("acme", limits=Limits(1)), 1, 1)  # has old slots leave
        naive.requests.append(Request(now_s, [1, 1, 1, 1], _day(now_s), _month(now_s), 2, 0, 1))
    used = await gate.used(who)
    if gate.server is None:
        assert naive.spent(now_s) == used["spent"]
    assert tuple(naive.minute(kind, now_s) for kind in range(4)) == used["used"]
    assert sum(request.is_running for request in naive.requests) == used["running"]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(steps=STEPS)
def test_in_memory_as_the_naive_model(steps: list[Any]) -> None:
    asyncio.run(walk(memory_gate(), steps))


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    yield from own_redis()


@pytest.fixture
def timed_server(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> RedisServer:
    manual_time(monkeypatch)
    return server


async def _in_redis(server: RedisServer, steps: list[Any]) -> None:
    server.client.flushall()
    async with redis_gate(server) as gate:
        await walk(gate, steps)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_in_redis_as_the_naive_model(timed_server: RedisServer, steps: list[Any]) -> None:
    asyncio.run(_in_redis(timed_server, steps))


@pytest.mark.long
@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_in_redis_as_the_naive_model_at_length(timed_server: RedisServer, steps: list[Any]) -> None:
    asyncio.run(_in_redis(timed_server, steps))


async def streams(gate: Gate, seed: int, num_deltas: int = 3000) -> None:
    """Answers of one tenant side by side, on one budget, in money or tokens."""
    pick = random.Random(seed)
    in_money = pick.random() < 0.5
    budget = Budget(nano_usd_per_day=30_000) if in_money else Budget(tokens_per_month=3000)
    acme = Tenant("acme", budget=budget, limits=Limits(output_tokens_per_minute=pick.choice([None, 2000])))
    running: list[tuple[Ticket, list[int], int]] = []
    total_tokens = total_cost = overrun = num_ended = 0
    for _ in range(num_deltas):
        if pick.random() < 0.05 and len(running) < 8:
            num_input = pick.randint(1, 200)
            with contextlib.suppress(RateLimitError):
                has_cap = pick.random() < 0.5
                most = pick.choice([50, 5000])
                ticket = await gate.reserve(acme, num_input, most, has_cap=has_cap, model=PAID)
                running.append((ticket, [num_input, 0], most))
        if not running:
            continue
        ticket, figures, most = stream = pick.choice(running)
        delta = min(pick.randint(1, 5), most - figures[1])
        figures[1] += delta
        try:
            ticket.produced(figures[1])
            is_over = pick.random() < 0.002 or figures[1] == most
        except InsufficientQuotaError:
            is_over, overrun, num_ended = True, overrun + delta, num_ended + 1
        await gate.told()
        if is_over:
            running.remove(stream)
            cost = PAID.price.nano_usd(figures[0], 0, figures[1])
            ticket.settle(Usage(figures[0], 0, figures[1], cost))
            total_tokens, total_cost = total_tokens + sum(figures), total_cost + cost
        gate.advance(0.05)
    for ticket, figures, _ in running:
        cost = PAID.price.nano_usd(figures[0], 0, figures[1])
        ticket.settle(Usage(figures[0], 0, figures[1], cost))
        total_tokens, total_cost = total_tokens + sum(figures), total_cost + cost
    assert num_ended > 0
    assert total_tokens <= 3000 + overrun or in_money
    assert total_cost <= 30_000 + 15 * overrun or not in_money
    used = await gate.used(acme)
    assert {"spent": (total_tokens, total_tokens, total_cost, total_cost), "running": 0} == {
        "spent": used["spent"],
        "running": used["running"],
    }


@pytest.mark.parametrize("seed", range(20))
async def test_answers_side_by_side_overrun_a_budget_by_a_delta_each(seed: int) -> None:
    await streams(memory_gate(), seed)


@pytest.mark.parametrize("seed", range(3))
async def test_answers_side_by_side_overrun_a_budget_by_a_delta_each_in_redis(timed_server: RedisServer, seed: int) -> None:
    timed_server.client.flushall()
    async with redis_gate(timed_server) as gate:
        await streams(gate, seed, num_deltas=1200)
