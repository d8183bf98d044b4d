"""Limits that replicas share, while replicas and Redis come and go."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from server.admission import redis_link
from server.admission.limits import Usage
from server.admission.redis_store import RedisStore
from server.admission.ticket import Ticket
from server.clock import ManualClock
from server.context import Budget
from server.errors import InsufficientQuotaError, LimitsAwayError, RateLimitError
from tests.admission.gates import NOW_S, PAID, USED, Gate, manual_time, redis_gate, tenant
from tests.services.redis import RedisServer, own_redis

BASE = "k3gw:{acme}"


@pytest.fixture(scope="module")
def one_server() -> Iterator[RedisServer]:
    yield from own_redis()


@pytest.fixture
def server(one_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> RedisServer:
    one_server.thaw()
    if not _answers(one_server):
        one_server.start()
    one_server.client.flushall()
    manual_time(monkeypatch)
    return one_server


@pytest.fixture
async def gate(server: RedisServer) -> AsyncIterator[Gate]:
    async with redis_gate(server) as gate:
        yield gate


def _answers(server: RedisServer) -> bool:
    try:
        return bool(server.client.ping())
    except RedisConnectionError:
        return False


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not what():
            await asyncio.sleep(0.005)


def store_of(gate: Gate) -> RedisStore:
    assert isinstance(gate.store, RedisStore)
    return gate.store


async def test_two_replicas_admit_what_one_would(server: RedisServer) -> None:
    acme, clock = tenant(requests_per_minute=60), ManualClock(NOW_S)
    admitted: list[float] = []

    async def hammer(gate: Gate, num: int) -> None:
        for _ in range(num):
            with contextlib.suppress(RateLimitError):
                (await gate.reserve(acme)).settle(USED)
                admitted.append(clock.now_s)

    async with redis_gate(server, clock) as one, redis_gate(server, clock) as other:
        for _ in range(13):
            await asyncio.gather(*(hammer(gate, 3) for gate in (one, other) for _ in range(4)))
            one.advance(10)
    assert {60} == {sum(then - 60 <= at <= then for at in admitted) for then in (NOW_S + 20, NOW_S + 60, NOW_S + 90, NOW_S + 120)}
    assert 120 == len(admitted)


async def test_two_replicas_never_run_more_at_once_than_one_may(server: RedisServer) -> None:
    acme, clock, running, most, num_done = tenant(concurrent_requests=5), ManualClock(NOW_S), 0, 0, 0

    async def client(gate: Gate, seed: int) -> None:
        nonlocal running, most, num_done
        pick = random.Random(seed)
        for _ in range(20):
            try:
                ticket = await gate.reserve(acme)
            except RateLimitError:
                await asyncio.sleep(0.001)
                continue
            running, num_done = running + 1, num_done + 1
            most = max(most, running)
            await asyncio.sleep(pick.choice([0, 0.001, 0.003]))
            running -= 1
            ticket.settle(USED)

    async with redis_gate(server, clock) as one, redis_gate(server, clock) as other:
        await asyncio.gather(*(client(gate, seed) for seed, gate in enumerate([one, other] * 6)))
        await other.told()
        assert 0 == (await one.used(acme))["running"]
    assert 5 == most
    assert num_done > 50


async def test_a_client_that_asks_again_at_once_finds_its_slot_free(gate: Gate) -> None:
    acme = tenant(concurrent_requests=1)
    for _ in range(50):
        (await gate.reserve(acme)).settle(USED)


async def test_what_a_killed_replica_held_comes_back_and_what_a_living_one_holds_stays(server: RedisServer) -> None:
    acme = tenant(concurrent_requests=2, output_tokens_per_minute=1000, budget=Budget(tokens_per_day=1000))
    clock = ManualClock(NOW_S)
    async with redis_gate(server, clock, lease_s=25.0, renew_s=0.01) as living:
        kept = await living.reserve(acme, 10, 90)
        async with redis_gate(server, clock, lease_s=25.0, renew_s=0.01) as killed:
            await killed.reserve(acme, 300, 500)
        await living.told()
        with pytest.raises(RateLimitError, match="`2` of your requests may run at once, and 2 do"):
            await living.reserve(acme, 1, 1)

        for _ in range(3):
            living.advance(8)
            ends_ms = (clock.now_s + 25) * 1000
            await until(lambda ends_ms=ends_ms: max(_scores(server)) >= ends_ms)  # type: ignore[misc]
        with pytest.raises(RateLimitError):
            await living.reserve(acme, 1, 1)
        living.advance(2)
        second = await living.reserve(acme, 10, 10)
        assert {"used": (3, 20, 20, 100), "spent": (120, 120, 0, 0), "running": 2} == await living.used(acme)
        kept.settle(Usage(10, 0, 5))
        second.settle(Usage(10, 0, 5))
        assert {"used": (3, 20, 20, 10), "spent": (30, 30, 0, 0), "running": 0} == await living.used(acme)


def _scores(server: RedisServer) -> list[float]:
    return [score for _, score in server.client.zrange(f"{BASE}:leases", 0, -1, withscores=True)]


async def test_a_replica_that_slept_longer_than_its_leases_charges_in_full(server: RedisServer) -> None:
    acme, clock = tenant(budget=Budget(tokens_per_day=1000)), ManualClock(NOW_S)
    async with redis_gate(server, clock, lease_s=25.0, renew_s=1000.0) as asleep, redis_gate(server, clock) as other:
        ticket = await asleep.reserve(acme, 10, 900)
        asleep.advance(26)
        await other.reserve(acme, 1, 1)
        assert (2, 2, 0, 0) == (await other.used(acme))["spent"]
        ticket.produced(100)
        ticket.settle(Usage(10, 0, 150))
        await asleep.told()
        assert (162, 162, 0, 0) == (await other.used(acme))["spent"]


async def test_redis_away_open(server: RedisServer) -> None:
    acme = tenant(concurrent_requests=3, requests_per_minute=4, budget=Budget(tokens_per_day=1000))
    async with redis_gate(server) as gate:
        before = await gate.reserve(acme, 100, 100)
        (await gate.reserve(acme, 100, 100)).settle(Usage(100, 0, 100))
        await gate.told()
        server.stop()

        while not store_of(gate).is_away:
            (await gate.reserve(tenant("other"))).settle(USED)
        during = [await gate.reserve(acme, 100, 100), await gate.reserve(acme, 100, 100)]
        with pytest.raises(RateLimitError, match="`3` of your requests may run at once, and 3 do"):
            await gate.reserve(acme, 1, 1)
        during[0].settle(Usage(100, 0, 50))
        with pytest.raises(InsufficientQuotaError, match="750 are spent or reserved, this request needs 301 at least"):
            await gate.reserve(acme, 300, 50)
        before.produced(100)
        assert 1 == store_of(gate).num_away
        assert gate.admission.budget_remaining_ratio(acme) == pytest.approx(0.25)

        server.start()
        gate.set_time(gate.clock.now_s)
        await gate.told()
        await until(lambda: len(_scores(server)) == 2)
        assert {"concurrent": 2, "spent": ("150", None)} == {
            "concurrent": len(_scores(server)),
            "spent": tuple(server.client.hmget(f"{BASE}:d{int(NOW_S) // 86400}", ["t", "n"])),
        }
        before.settle(Usage(100, 0, 10, 7))
        during[1].settle(Usage(100, 0, 20))
        assert {"used": (0, 0, 0, 0), "spent": (380, 380, 7, 7), "running": 0} == await gate.used(acme)


async def test_redis_away_closed(server: RedisServer) -> None:
    acme = tenant(concurrent_requests=3)
    async with redis_gate(server, away="closed") as gate:
        ticket = await gate.reserve(acme)
        server.stop()
        with pytest.raises(LimitsAwayError) as caught:
            await gate.reserve(acme)
        assert 1 == caught.value.retry_after_s
        ticket.produced(5)
        with pytest.raises(LimitsAwayError):
            await gate.reserve(acme)
        ticket.settle(USED)
        server.start()
        gate.set_time(NOW_S)
        await gate.told()
        await gate.reserve(acme)
        assert {"used": (1, 10, 10, 5), "spent": (30, 30, 0, 0), "running": 1} == await gate.used(acme)


@pytest.mark.parametrize("away", ["open", "closed"])
async def test_a_redis_that_does_not_answer_holds_up_nobody(server: RedisServer, away: str) -> None:
    acme = tenant(concurrent_requests=1000, budget=Budget(tokens_per_day=100_000))
    async with redis_gate(server, away=away, deadline_s=0.05, retry_s=0.05, lease_s=25.0) as gate:
        await gate.told()
        for _ in range(20):  # the machine may be busy
            tickets = await asyncio.gather(*(gate.reserve(acme) for _ in range(5)), return_exceptions=True)
            if not store_of(gate).is_away:
                break
        server.freeze()
        since_s = time.monotonic()
        for _ in range(3):
            tickets += await asyncio.gather(*(gate.reserve(acme) for _ in range(30)), return_exceptions=True)
        assert store_of(gate).is_away
        assert time.monotonic() - since_s < 20
        admitted = [ticket for ticket in tickets if isinstance(ticket, Ticket)]
        assert all(isinstance(ticket, Ticket | LimitsAwayError) for ticket in tickets)
        assert (len(admitted) >= 95) is (away == "open")
        for ticket in admitted:
            ticket.settle(USED)
        server.thaw()
        await gate.told()
        gate.advance(26)  # what was decided too late, by then, has run out
        await until(lambda: not store_of(gate).is_away)
    async with redis_gate(server, gate.clock, lease_s=25.0) as other:
        (await other.reserve(acme)).settle(USED)
        used = await other.used(acme)
        assert ((15 * (len(admitted) + 1),) * 2, 0) == (used["spent"][:2], used["running"])


async def test_a_gateway_that_was_busy_itself_does_not_take_redis_for_slow(server: RedisServer) -> None:
    async with redis_gate(server, deadline_s=0.2) as gate:
        await gate.told()
        decision = asyncio.ensure_future(gate.reserve(tenant()))
        while store_of(gate).teller.has_told_all:
            await asyncio.sleep(0)
        time.sleep(0.3)  # noqa: ASYNC251 - the loop's stall is what this is about
        await decision
        assert not store_of(gate).is_away


async def test_without_anybody_to_ask_redis_decisions_are_made_here(server: RedisServer) -> None:
    clock = ManualClock(NOW_S)
    gate = Gate(RedisStore(server.url, clock, deadline_s=0.02), clock, server)

    async with asyncio.timeout(60):
        (await gate.reserve(tenant(requests_per_minute=1))).settle(USED)
        with pytest.raises(RateLimitError):
            await gate.reserve(tenant(requests_per_minute=1))


@pytest.mark.parametrize("seed", range(4))
async def test_a_settlement_whose_answer_is_lost_is_told_once(server: RedisServer, seed: int) -> None:
    """Answers and calls get lost at random."""
    pick, acme, total = random.Random(seed), tenant(budget=Budget(tokens_per_day=10**9)), 0
    async with redis_gate(server, retry_s=0.001, lease_s=25.0, deadline_s=5.0) as gate:
        call = store_of(gate).teller._link.call
        is_broken = True

        async def flaky(payloads: Any) -> list[bytes]:
            if is_broken and pick.random() < 0.15:
                raise TimeoutError("lost on the way there")
            answers = await call(payloads)
            if is_broken and pick.random() < 0.15:
                raise TimeoutError("lost on the way back")
            return answers

        store_of(gate).teller._link.call = flaky  # type: ignore[method-assign]

        async def client(seed: int) -> None:
            nonlocal total
            pick = random.Random(seed)
            for _ in range(15):
                num_input, num_output = pick.randint(1, 100), pick.randint(1, 900)
                ticket = await gate.reserve(acme, num_input, 1000, has_cap=False, model=PAID)
                ticket.prefilled(num_input // 2)
                for num in range(0, num_output, 50):
                    ticket.produced(num)
                    await asyncio.sleep(0)
                cost = PAID.price.nano_usd(num_input, num_input // 2, num_output)
                ticket.settle(Usage(num_input, num_input // 2, num_output, cost))
                total += num_input + num_output

        await asyncio.gather(*(client(seed * 100 + index) for index in range(12)))
        is_broken = False
        await gate.told()
        gate.advance(26)
        (await gate.reserve(acme, 1, 1, model=PAID)).settle(Usage())
        used = await gate.used(acme)
        assert {"spent": (total, total), "running": 0} == {"spent": used["spent"][:2], "running": used["running"]}
        assert store_of(gate).num_away >= 1


@pytest.mark.parametrize("seed", range(4))
async def test_requests_that_are_given_up_at_any_moment_leave_nothing(server: RedisServer, seed: int) -> None:
    acme = tenant(concurrent_requests=1000, budget=Budget(tokens_per_day=10**9))
    total = 0

    async def client(gate: Gate, seed: int) -> None:
        nonlocal total
        pick = random.Random(seed)
        ticket = None
        try:
            ticket = await gate.reserve(acme, 10, 100)
            await asyncio.sleep(pick.choice([0, 0.001]))
        finally:
            if ticket is not None:
                num_output = pick.randint(0, 100)
                ticket.settle(Usage(10, 0, num_output))
                total += 10 + num_output

    async with redis_gate(server) as gate:
        pick = random.Random(seed)
        for turn in range(15):
            clients = [asyncio.ensure_future(client(gate, seed * 1000 + turn * 20 + index)) for index in range(10)]
            for task in clients:
                for _ in range(pick.randint(0, 6)):
                    await asyncio.sleep(0)
                if pick.random() < 0.7:
                    task.cancel()
            await asyncio.wait(clients)
        used = await gate.used(acme)
        assert {"spent": (total, total), "running": 0} == {"spent": used["spent"][:2], "running": used["running"]}
        assert total > 0


async def test_a_redis_that_lost_its_data_is_told_again(server: RedisServer) -> None:
    acme = tenant(concurrent_requests=2, budget=Budget(tokens_per_day=1000))

    async def ledger_totals() -> Mapping[str, tuple[int, int, int, int]]:
        return {"acme": (700, 70, 800, 80)}

    async with redis_gate(server, renew_s=0.02, ledger_totals=ledger_totals) as gate:
        gate.store.seed({"acme": (500, 50, 600, 60)})
        ticket = await gate.reserve(acme, 10, 100)
        assert (610, 710, 50, 60) == (await gate.used(acme))["spent"]
        server.client.flushall()
        gate.set_time(NOW_S)
        await until(lambda: server.client.get("k3gw:seeded") and _scores(server))

        await gate.reserve(acme, 10, 100)
        with pytest.raises(RateLimitError, match="may run at once, and 2 do"):
            await gate.reserve(acme, 1, 1)
        ticket.settle(Usage(10, 0, 20))
        await gate.told()
        assert "840" == server.client.hget(f"{BASE}:d{int(NOW_S) // 86400}", "t")


async def test_a_redis_that_forgot_its_scripts_is_given_them_again(gate: Gate, server: RedisServer) -> None:
    acme = tenant(requests_per_minute=3)
    await gate.reserve(acme)
    server.client.script_flush()
    (await gate.reserve(acme)).settle(USED)

    await gate.told()
    await gate.reserve(acme)
    assert not store_of(gate).is_away


@pytest.mark.parametrize("jump_s", [-3600, -30, -1, 3600])
async def test_a_clock_that_jumps_blocks_or_grants_for_one_window_at_most(gate: Gate, server: RedisServer, jump_s: int) -> None:
    acme = tenant(requests_per_minute=2, concurrent_requests=5)
    for _ in range(2):
        gate.advance(1)
        (await gate.reserve(acme)).settle(USED)
    gate.advance(jump_s)
    after_s = gate.clock.now_s
    if jump_s < 0:
        with pytest.raises(RateLimitError) as caught:
            await gate.reserve(acme)
        assert 58 <= (caught.value.retry_after_s or 0) <= 62
        gate.advance(62)
    for _ in range(2):
        await gate.reserve(acme)
    with pytest.raises(RateLimitError):
        await gate.reserve(acme)
    assert gate.clock.now_s - after_s <= 62


async def test_leases_of_a_time_that_was_set_back_end(server: RedisServer) -> None:
    acme, clock = tenant(concurrent_requests=1), ManualClock(NOW_S)
    async with redis_gate(server, clock, lease_s=25.0):
        pass
    async with redis_gate(server, clock, lease_s=25.0) as killed:
        await killed.reserve(acme)
    async with redis_gate(server, clock, lease_s=25.0) as gate:
        gate.advance(-3600)
        with pytest.raises(RateLimitError):
            await gate.reserve(acme)
        gate.advance(26)
        await gate.reserve(acme)


async def test_the_last_words_of_a_replica_are_heard(server: RedisServer) -> None:
    acme, clock = tenant(), ManualClock(NOW_S)
    async with redis_gate(server, clock) as gate:
        ticket = await gate.reserve(acme, 10, 100)
        ticket.settle(Usage(10, 0, 7))
    async with redis_gate(server, clock) as other:
        assert {"used": (1, 10, 10, 7), "spent": (17, 17, 0, 0), "running": 0} == await other.used(acme)


async def test_keys_go_by_themselves_and_share_a_hash_slot(gate: Gate, server: RedisServer) -> None:
    ticket = await gate.reserve(tenant(), 10, 100, model=PAID)
    ticket.settle(USED)
    await gate.reserve(tenant(), 10, 100, model=PAID)
    await gate.told()

    keys = {key: server.client.ttl(key) for key in server.client.keys("k3gw:*")}
    assert 7 == len(keys)
    assert all(key.startswith(BASE + ":") for key in keys)
    assert all(0 < ttl_s <= 40 * 86400 for ttl_s in keys.values())


async def test_a_large_amount_of_money_is_counted_to_the_nano_dollar(gate: Gate) -> None:
    acme = tenant(budget=Budget(nano_usd_per_month=10**18))
    gate.store.seed({"acme": (0, 0, 0, 10**18 - 10**9)})
    ticket = await gate.reserve(acme, 1, 3, model=PAID)
    ticket.settle(Usage(1, 0, 3, 48))

    assert 10**18 - 10**9 + 48 == (await gate.used(acme))["spent"][3]


def test_the_script_is_the_file_that_is_packaged() -> None:
    assert b"return table.concat(answers, ';')" in redis_link.SCRIPT
