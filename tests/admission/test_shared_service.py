"""Fair queues of several replicas on one Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from server.admission.fair_queue import FairQueue
from server.admission.place import Place
from server.admission.service import UNIT
from server.admission.shared_service import SharedService
from server.clock import ManualClock
from server.context import Tenant
from server.engine.scripted.timer import ManualTimer
from server.models import Price
from server.sections import AdmissionSettings
from tests.admission.queues import A, B, C, Figures
from tests.services.redis import RedisServer, own_redis


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    yield from own_redis()


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    # As the gateway's own: with time limits, the library may lose a cancellation before Python 3.12.
    client = Redis.from_url(server.url, socket_timeout=None, socket_connect_timeout=None)
    await client.flushall()
    yield client
    await client.aclose()


class Replica:
    def __init__(self, redis: Redis, num_seats: int = 1) -> None:
        self.timer = ManualTimer(ManualClock())
        given = AdmissionSettings(reserved_seats=0, prefix_quantum_tokens=0)
        self.queue = FairQueue(num_seats, given, self.timer.clock, Figures(), call_later=self.timer.call_later)
        self.shared = SharedService(redis, self.queue)
        self.places: list[Place] = []

    def join(self, tenant: Tenant, num_input: int = 100, num_output: int = 0) -> Place:
        (place,) = self.queue.join(
            tenant, Price(), num_places=1, num_input_tokens=num_input, num_output_tokens=num_output, prefix_key=b""
        )
        self.places.append(place)
        return place

    def counter(self, tenant: Tenant) -> float:
        account = self.queue.accounts.get(tenant.name)
        assert account is not None
        return account.counter / UNIT

    async def serve(self, most: int) -> str:
        """Whose requests are served, one after the other."""
        served = ""
        while len(served) < most and (seated := next((it for it in self.places if it.is_seated and not it.has_left), None)):
            await seated.wait()
            served += seated.account.name
            seated.leave()
        return served


async def test_who_floods_one_replica_waits_at_the_other(redis: Redis) -> None:
    here, there = Replica(redis), Replica(redis)
    there.join(B), there.join(B)
    await there.shared.exchange()
    for _ in range(200):
        here.join(A)
    await here.serve(100)
    await here.shared.exchange()
    for _ in range(100):
        there.join(A), there.join(B)
    await there.shared.exchange()
    await here.shared.exchange()
    assert 10_000 == pytest.approx(there.counter(A), rel=0.05)
    assert "b" * 90 == await there.serve(90)


async def test_without_an_exchange_each_counts_alone(redis: Redis) -> None:
    here, there = Replica(redis), Replica(redis)
    for _ in range(200):
        here.join(A)
    await here.serve(100)
    for _ in range(100):
        there.join(A), there.join(B)
    assert 10 == (await there.serve(20)).count("a")


async def test_service_at_both_adds_up_and_is_given_back_at_both(redis: Redis) -> None:
    here, there = Replica(redis, 2), Replica(redis, 2)
    first, second = here.join(A, 100, 1000), there.join(A, 100, 1000)
    for replica in (here, there, here):
        await replica.shared.exchange()
    assert [10_200.0, 10_200.0] == [here.counter(A), there.counter(A)]
    await first.wait()
    first.leave()
    for replica in (here, there, here):
        await replica.shared.exchange()
    assert [5200.0] == [there.counter(A)]
    second.leave()
    await there.shared.exchange()
    assert b"100" == await redis.get("{k3gw}:service:tenant:a")


async def test_two_lifts_at_once_lift_once(redis: Redis) -> None:
    here, there = Replica(redis, 2), Replica(redis, 2)
    for replica in (here, there):
        long = replica.join(C, 10)
        replica.places.remove(long)
        for _ in range(30):
            replica.join(B, 100)
        await replica.serve(20)
    for replica in (here, there, here):
        await replica.shared.exchange()
    assert 20.0 == here.counter(C) == there.counter(C)
    floor = here.counter(B)
    assert floor == there.counter(B) > 4000
    here.join(C), there.join(C)
    assert floor == here.counter(C) == there.counter(C)
    for replica in (here, there, here):
        await replica.shared.exchange()
    assert floor == here.counter(C) == there.counter(C)
    assert floor == float(await redis.get("{k3gw}:service:tenant:c"))


async def test_who_is_given_back_elsewhere_moves_up_here(redis: Redis) -> None:
    here, there = Replica(redis), Replica(redis)
    reserved = here.join(A, 100, 10_000)
    await here.shared.exchange()
    there.join(B), there.join(A)
    for _ in range(8):
        there.join(B)
    await there.shared.exchange()
    assert "bb" == await there.serve(2)
    await reserved.wait()
    reserved.leave()
    await here.shared.exchange()
    await there.shared.exchange()
    assert "ba" == await there.serve(2), "of which the first had its seat before"


async def test_the_others_floor_is_not_ones_own(redis: Redis) -> None:
    here, there = Replica(redis), Replica(redis)
    here.join(A), here.join(A)
    await here.shared.exchange()
    assert here.queue.accounts.others_floor is None
    await there.shared.exchange()
    assert 100 * UNIT == there.queue.accounts.others_floor


async def test_who_is_new_where_nobody_waits_starts_with_those_who_wait_elsewhere(redis: Redis) -> None:
    here, there = Replica(redis), Replica(redis)
    for _ in range(200):
        here.join(A)
    await here.serve(100)
    await here.shared.exchange()
    await there.shared.exchange()
    there.join(B)
    assert there.counter(B) >= here.counter(A)


async def test_while_redis_is_away_counters_go_on_and_are_merged_afterwards(redis: Redis, server: RedisServer) -> None:
    here, there = Replica(redis), Replica(redis)
    here.join(A, 100), there.join(A, 100)
    for replica in (here, there, here):
        await replica.shared.exchange()
    server.stop()
    try:
        here.join(A, 50), there.join(A, 70)
        await here.serve(1), await there.serve(1)
        for replica in (here, there):
            begun_s = time.monotonic()
            await replica.shared.exchange()
            await replica.shared.exchange()
            assert time.monotonic() - begun_s < 8
            assert replica.shared.is_away
        assert [250.0, 270.0] == [here.counter(A), there.counter(A)]
        here.join(A, 1)
        await here.serve(1)
    finally:
        server.start()
    for replica in (here, there, here, there, here):
        await replica.shared.exchange()
    assert not here.shared.is_away
    assert not there.shared.is_away
    # Redis has lost what it had: whoever comes first says what was, and the others add what they did since.
    assert 251.0 + 70.0 == here.counter(A) == there.counter(A)


async def test_an_answer_that_came_too_late_counts_once(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Replica(redis)
    here.join(A, 100)
    await here.shared.exchange()
    here.join(A, 50)
    await here.serve(1)
    script = here.shared._script

    async def lost(**given: object) -> list[bytes]:
        await script(**given)
        raise TimeoutError

    monkeypatch.setattr(here.shared, "_script", lost)
    await here.shared.exchange()
    assert here.shared.is_away
    await here.shared.exchange()
    here.join(A, 7)
    await here.serve(1)
    monkeypatch.undo()
    await here.shared.exchange()
    await here.shared.exchange()
    assert 157.0 == here.counter(A) == float(await redis.get("{k3gw}:service:tenant:a"))


async def test_running_is_exchanging_again_and_again(redis: Redis) -> None:
    here, there = Replica(redis), Replica(redis)
    here.join(A, 1000)
    async with asyncio.TaskGroup() as group:
        loops = [group.create_task(replica.shared.run()) for replica in (here, there)]
        place = there.join(A, 10)
        async with asyncio.timeout(60):
            while there.counter(A) < 1010 or here.counter(A) < 1010:
                await asyncio.sleep(0.01)
        for loop in loops:
            loop.cancel()
    assert not place.has_left


async def test_the_idle_are_forgotten_once_all_know(redis: Redis) -> None:
    here = Replica(redis, 2)
    for number in range(20):
        here.join(Tenant(f"t{number}")).leave()
    assert len(here.queue.accounts) == 20
    await here.shared.exchange()
    assert len(here.queue.accounts) == 0


async def test_of_many_accounts_all_get_their_turns(redis: Redis) -> None:
    here = Replica(redis, 4000)
    for number in range(2500):
        here.join(Tenant(f"t{number}"))
    num_told = 0
    for _ in range(100):  # a busy machine may need more than the 50 ms that one has
        await here.shared.exchange()
        num_told += not here.shared.is_away
        if num_told == 3:
            break
    assert 2500 == len([key async for key in redis.scan_iter("*tenant:*", count=1000)])
