"""The queue before the engine: who gets a seat, who waits, and what is left of those who don't want to any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from server.admission.fair_queue import FairQueue
from server.admission.place import Place
from server.admission.service import UNIT
from server.clock import ManualClock
from server.context import Tenant
from server.engine.scripted.timer import ManualTimer
from server.errors import OverloadedError, QueueTimeoutError, RateLimitError
from server.models import Price
from server.sections import AdmissionSettings

A, B, C = Tenant("a"), Tenant("b"), Tenant("c")


@dataclass
class Figures:
    kv_cache_usage: float = 0.0
    num_preemptions: int = 0


class Bench:
    """A queue in time that moves when told to."""

    def __init__(self, num_seats: int, **settings: Any) -> None:
        self.timer = ManualTimer(ManualClock())
        self.figures = Figures()
        settings = {"reserved_seats": 0, "prefix_quantum_tokens": 0, **settings}
        self.queue = FairQueue(
            num_seats, AdmissionSettings(**settings), self.timer.clock, self.figures, call_later=self.timer.call_later
        )

    def join(
        self, tenant: Tenant, num_input: int = 100, num_output: int = 0, *, num_places: int = 1, **given: Any
    ) -> list[Place]:
        price = given.pop("price", Price())
        return self.queue.join(
            tenant, price, num_places=num_places, num_input_tokens=num_input, num_output_tokens=num_output, **given
        )

    def one(self, tenant: Tenant, num_input: int = 100, num_output: int = 0, **given: Any) -> Place:
        return self.join(tenant, num_input, num_output, **given)[0]

    def counter(self, tenant: Tenant) -> float:
        account = self.queue.accounts.get(tenant.name)
        assert account is not None
        return account.counter / UNIT

    def assert_empty(self) -> None:
        assert (0, 0) == (self.queue.num_queued, self.queue.num_seated)
        assert {} == self.queue.queued_by_tenant()
        assert [] == self.timer.pending
        assert all(account.is_idle and account.at_stake == 0 for account in self.queue.accounts)


def start(place: Place) -> None:
    """Wait for the seat that `place` has."""
    with pytest.raises(StopIteration):
        place.wait().send(None)


@pytest.fixture
def bench() -> Callable[..., Bench]:
    return Bench


def serve_all(bench: Bench, places: list[Place], *, most: int = 10**6) -> str:
    """Whose requests are served, one after the other, where there is one seat."""
    order = ""
    while len(order) < most and (seated := next((place for place in places if place.is_seated and not place.has_left), None)):
        order += seated.account.name
        start(seated)
        seated.leave()
    return order


def test_there_are_never_more_seated_than_seats(bench: Callable[..., Bench]) -> None:
    b = bench(3)
    places = b.join(A, num_places=2) + b.join(B, num_places=4)
    assert [True] * 3 + [False] * 3 == [place.is_seated for place in places]
    assert (3, 3, {"b": 3}) == (b.queue.num_seated, b.queue.num_queued, b.queue.queued_by_tenant())
    places[0].leave()
    assert [3] == [index for index in range(3, 6) if places[index].is_seated]
    for place in places:
        place.leave()
    b.assert_empty()


def test_leaving_twice_frees_one_seat(bench: Callable[..., Bench]) -> None:
    b = bench(1)
    first, second, third = b.join(A, num_places=3)
    first.leave()
    first.leave()
    assert (True, False) == (second.is_seated, third.is_seated)


async def test_waiting_ends_with_a_seat(bench: Callable[..., Bench]) -> None:
    b = bench(1)
    first, second = b.join(A, num_places=2)
    await first.wait()
    waiter = asyncio.ensure_future(second.wait())
    await asyncio.sleep(0)
    assert not waiter.done()
    first.leave()
    await waiter
    second.leave()
    b.assert_empty()


@pytest.mark.parametrize("is_seated_first", [False, True])
async def test_a_client_that_leaves_the_queue_leaves_no_trace(bench: Callable[..., Bench], is_seated_first: bool) -> None:
    """Also when it is given a seat in the same turn of the loop, before or after."""
    b = bench(1)
    first, second, third = b.one(A), b.one(B), b.one(C)
    waiter = asyncio.ensure_future(second.wait())
    await asyncio.sleep(0)
    if is_seated_first:
        first.leave()
        assert second.is_seated
    waiter.cancel()
    first.leave()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert second.has_left
    assert third.is_seated
    third.leave()
    b.assert_empty()
    assert {} == b.queue.take_service(), "nobody was served anything"


async def test_leaving_ends_the_wait_of_another_task(bench: Callable[..., Bench]) -> None:
    b = bench(1)
    first, second = b.join(A, num_places=2)
    waiter = asyncio.ensure_future(second.wait())
    await asyncio.sleep(0)
    second.leave()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    with pytest.raises(RuntimeError, match="was left"):
        await second.wait()
    first.leave()
    b.assert_empty()


async def test_who_waits_too_long_is_told_so_and_is_gone(bench: Callable[..., Bench]) -> None:
    b = bench(1, queue_timeout_s=10)
    first, early = b.join(A, num_places=2)
    waiter = asyncio.ensure_future(early.wait())
    b.timer.advance(6)
    late = b.one(B)
    b.timer.advance(3.9)
    assert (2, False) == (b.queue.num_queued, waiter.done())
    b.timer.advance(0.2)
    assert {"b": 1} == b.queue.queued_by_tenant()
    with pytest.raises(QueueTimeoutError, match="waited 10 s") as raised:
        await waiter
    assert raised.value.retry_after_s
    b.timer.advance(6)
    with pytest.raises(QueueTimeoutError):
        await late.wait()
    for place in (first, early, late):
        place.leave()
    b.assert_empty()


def test_weights_are_the_shares_of_service(bench: Callable[..., Bench]) -> None:
    b = bench(1)
    one, three = Tenant("a", weight=1), Tenant("b", weight=3)
    places = [b.one(tenant) for _ in range(300) for tenant in (one, three)]
    served = serve_all(b, places, most=200)
    assert 50 == pytest.approx(served.count("a"), abs=1)


def test_what_is_cheap_is_served_more_often(bench: Callable[..., Bench]) -> None:
    """By the prices: 100 input and 10 output tokens at 1 : 20 are as much as 300 input tokens."""
    b = bench(1)
    price = Price(input=10, cached_input=1, output=200)
    places = []
    for _ in range(100):
        places += [b.one(A, 300, price=price), b.one(B, 100, 10, price=price)]
    for place in places:
        place.produced(0)
    served = ""
    for place in sorted(places, key=lambda place: place.serial):
        assert not place.has_left
    while len(served) < 100:
        place = next(place for place in places if place.is_seated and not place.has_left)
        served += place.account.name
        start(place)
        if place.account.name == "b":
            place.produced(10)
        place.leave()
    assert 50 == pytest.approx(served.count("a"), abs=1)


def test_ties_go_to_who_came_first(bench: Callable[..., Bench]) -> None:
    b = bench(1)
    places = [b.one(tenant) for tenant in (A, C, B, A, B, C)]
    assert "acb" == serve_all(b, places)[:3]


async def test_the_charge_becomes_the_truth(bench: Callable[..., Bench]) -> None:
    b = bench(1)
    first = b.one(A, 1000, 100)
    waiting = b.one(A, 1)
    assert 1000 + 100 * 5 == b.counter(A)
    await first.wait()
    first.prefilled(400)
    assert 600 + 40 + 500 == b.counter(A)
    first.produced(99)
    assert 600 + 40 + 500 == b.counter(A)
    first.produced(11)
    assert 600 + 40 + 550 == b.counter(A)
    assert {"a": 600 + 40 + 550} == b.queue.take_service()
    first.leave()
    assert 600 + 40 + 550 + 1 == b.counter(A), "and the next has its seat"
    waiting.leave()
    assert {} == b.queue.take_service()
    b.assert_empty()


async def test_what_was_reserved_for_nothing_is_given_back(bench: Callable[..., Bench]) -> None:
    b = bench(1)
    first = b.one(A, 1000, 4000)
    waiting = b.one(A, 1)
    await first.wait()
    first.prefilled(0)
    first.produced(10)
    first.leave()
    assert 1000 + 50 + 1 == b.counter(A)
    waiting.leave()


async def test_a_prompt_that_may_have_been_read_is_paid_for(bench: Callable[..., Bench]) -> None:
    b = bench(1)
    first = b.one(A, 1000, 4000)
    await first.wait()
    first.leave()
    assert {"a": 1000.0} == b.queue.take_service()
    second = b.one(A, 1000, 4000)
    second.leave()
    assert {} == b.queue.take_service(), "it had not begun to wait for the engine"


async def test_service_does_not_depend_on_the_weight(bench: Callable[..., Bench]) -> None:
    b = bench(1)
    first = b.one(Tenant("a", weight=4), 1000, 10)
    await first.wait()
    assert (1000 + 50) / 4 == b.counter(A)
    first.prefilled(0)
    assert {"a": 1000.0} == b.queue.take_service()
    first.leave()


async def test_a_new_weight_holds_from_the_next_charge(bench: Callable[..., Bench]) -> None:
    b = bench(1)
    first = b.one(Tenant("a", weight=1), 1000, 10)
    await first.wait()
    second = b.one(Tenant("a", weight=2), 1000)
    first.leave()
    assert 1000 + 500 == b.counter(A)
    second.leave()


def test_time_without_requests_is_no_credit(bench: Callable[..., Bench]) -> None:
    b = bench(1)
    places = [b.one(tenant) for _ in range(50) for tenant in (A, B)]
    serve_all(b, places, most=60)
    places += [b.one(C) for _ in range(20)]
    served = serve_all(b, places, most=30)
    assert 10 == pytest.approx(served.count("c"), abs=1)


def test_who_comes_back_is_not_put_back(bench: Callable[..., Bench]) -> None:
    """A debt stays where the tenant has nothing to ask for meanwhile."""
    b = bench(1)
    places = [b.one(B, 100) for _ in range(200)]
    places.append(b.one(A, 10_000))
    assert "bba" == serve_all(b, places, most=3)
    places.append(b.one(A, 1))
    assert 100 == pytest.approx(serve_all(b, places, most=150).index("a"), abs=2)


def test_classes_are_the_tenants_own_affair(bench: Callable[..., Bench]) -> None:
    b = bench(1)
    names = {}
    places = []
    for tenant, service_class in ((A, 2), (A, 1), (A, 0), (B, 2), (A, 0), (B, 1), (B, 1)):
        places.append(b.one(tenant, service_class=service_class))
        names[places[-1]] = f"{tenant.name}{service_class}"
    served = []
    while seated := next((place for place in places if place.is_seated and not place.has_left), None):
        served.append(names[seated])
        start(seated)
        seated.leave()
    assert ["a2", "a0", "b1", "a0", "b1", "a1", "b2"] == served


def test_a_tenants_queue_is_bounded(bench: Callable[..., Bench]) -> None:
    b = bench(1, max_queued_per_tenant=3)
    places = b.join(A, num_places=4)
    before = b.counter(A)
    with pytest.raises(RateLimitError, match="3 requests of `a` wait") as raised:
        b.one(A)
    assert ("queue_full", 5) == (raised.value.reason, raised.value.retry_after_s)
    assert (3, before) == (b.queue.num_queued, b.counter(A))
    places.append(b.one(B))
    with pytest.raises(RateLimitError):
        b.join(B, num_places=3)
    assert {"a": 3, "b": 1} == b.queue.queued_by_tenant()
    for place in places:
        place.leave()
    b.assert_empty()


def test_the_queue_is_bounded_and_a_refusal_leaves_nothing(bench: Callable[..., Bench]) -> None:
    b = bench(1, max_queued=5, max_queued_per_tenant=4)
    places = b.join(A, num_places=4) + b.join(B, num_places=2)
    with pytest.raises(OverloadedError, match="5 requests wait") as raised:
        b.one(C)
    assert raised.value.retry_after_s
    assert b.queue.accounts.get("c") is None
    for place in places:
        place.leave()
    b.assert_empty()


def test_a_flood_does_not_fill_the_queue(bench: Callable[..., Bench]) -> None:
    """Of tenants that each stay within their bound: others find a place, however many they are."""
    b = bench(1, max_queued=200, max_queued_per_tenant=100)
    for number in range(1000):
        with contextlib.suppress(OverloadedError, RateLimitError):
            b.one(Tenant(f"flood{number % 10}"))
    assert b.queue.num_queued > 190
    b.one(C)
    b.one(B)
    assert {"b": 1, "c": 1}.items() <= b.queue.queued_by_tenant().items()


def test_a_flood_leaves_room_for_a_light_tenant(bench: Callable[..., Bench]) -> None:
    b = bench(32, reserved_seats=None)
    flood = b.join(A, num_places=200)
    assert 30 == b.queue.num_seated
    light = b.join(B, num_places=3)
    assert [True, True, False] == [place.is_seated for place in light]
    light[0].leave()
    assert light[2].is_seated
    flood[0].leave()
    assert 31 == b.queue.num_seated, "a reserved seat is free again"
    light[1].leave()
    light[2].leave()
    assert 30 == b.queue.num_seated


def test_reserved_seats_are_no_way_to_more_than_the_share(bench: Callable[..., Bench]) -> None:
    """Whoever asks for much by few requests holds few seats; its service stays what the weights say."""
    b = bench(8, reserved_seats=2)
    flood = b.join(A, 100, num_places=100)
    places = []
    for _ in range(50):
        places.append(b.one(B, 1000))
        if places[-1].is_seated:
            start(places[-1])
            places[-1].leave()
    assert 6 == b.queue.num_seated, "both seats are kept for someone else"
    assert b.counter(B) - b.counter(A) <= 6 * 100 + 1000
    for place in places + flood:
        place.leave()
    b.assert_empty()


@pytest.mark.parametrize("wanted", [1, 2, 5])
def test_not_all_seats_are_reserved(bench: Callable[..., Bench], wanted: int) -> None:
    b = bench(2, reserved_seats=wanted)
    places = b.join(A, num_places=2)
    assert places[0].is_seated


def test_a_hot_prefix_is_preferred_within_the_quantum_and_no_further(bench: Callable[..., Bench]) -> None:
    b = bench(1, prefix_quantum_tokens=500)
    places = []
    for number in range(40):
        places += [b.one(A, 100, prefix_key=b"a"), b.one(B, 100, prefix_key=b"b%d" % number)]
    served = serve_all(b, places, most=40)
    assert served.startswith("aaaaaa")
    gaps = [served[:count].count("a") - served[:count].count("b") for count in range(1, 41)]
    assert max(gaps) <= 2 + 5, "of which the first came when nobody waited"
    assert min(gaps[10:]) >= 0


def test_no_prefix_is_none(bench: Callable[..., Bench]) -> None:
    b = bench(1, prefix_quantum_tokens=500)
    places = [b.one(tenant, 100) for _ in range(10) for tenant in (A, B)]
    assert "ab" * 5 == serve_all(b, places, most=10)


def test_who_is_gone_is_forgotten(bench: Callable[..., Bench]) -> None:
    b = bench(2)
    for number in range(1000):
        place = b.one(Tenant(f"t{number}"), 100 + number % 7)
        start(place)
        place.leave()
    assert len(b.queue.accounts) <= 7
    b.assert_empty()


def test_nonsense_is_refused(bench: Callable[..., Bench]) -> None:
    b = bench(1)
    for wrong in ({"num_places": 0}, {"service_class": 3}, {"service_class": -1}):
        with pytest.raises(ValueError, match="can't be asked for"):
            b.join(A, **wrong)
    b.assert_empty()


def test_a_full_cache_gives_no_seats_but_one(bench: Callable[..., Bench]) -> None:
    b = bench(4)
    b.figures.kv_cache_usage = 0.99
    places = b.join(A, num_places=3)
    assert [True, False, False] == [place.is_seated for place in places]
    b.timer.advance(1)
    assert 1 == b.queue.num_seated
    places[0].leave()
    assert 1 == b.queue.num_seated
    b.figures.kv_cache_usage = 0.5
    b.timer.advance(0.06)
    assert 2 == b.queue.num_seated
    for place in places:
        place.leave()
    b.assert_empty()


def test_after_a_preemption_seats_are_fewer_and_come_back_one_by_one(bench: Callable[..., Bench]) -> None:
    b = bench(6)
    places = b.join(A, num_places=20)
    b.figures.num_preemptions = 1
    b.timer.advance(0.06)
    assert (6, 5) == (b.queue.num_seated, b.queue.num_allowed)
    for place in places[:3]:
        place.leave()
    assert 5 == b.queue.num_seated
    b.timer.advance(0.8)
    assert 5 == b.queue.num_seated
    b.timer.advance(0.3)
    assert 6 == b.queue.num_seated
    for place in places:
        place.leave()
    b.assert_empty()


def test_lasting_pressure_sheds_what_would_wait(bench: Callable[..., Bench]) -> None:
    b = bench(4)
    b.join(A, num_places=2)
    b.figures.kv_cache_usage = 0.99
    b.one(B)
    with pytest.raises(OverloadedError, match="end of its memory"):
        b.one(C, service_class=2)
    b.timer.advance(4)
    b.one(C)
    b.timer.advance(1.5)
    with pytest.raises(OverloadedError, match="end of its memory"):
        b.one(C)
    b.figures.kv_cache_usage = 0.5
    late = b.one(C)
    assert (4, False) == (b.queue.num_seated, late.is_seated)


def test_pressure_that_nobody_saw_last_is_not_lasting(bench: Callable[..., Bench]) -> None:
    b = bench(4)
    places = b.join(A, num_places=1)
    b.figures.kv_cache_usage = 0.99
    places += b.join(B)
    places[1].leave()
    b.timer.advance(20)
    b.one(C)
    assert {"c": 1} == b.queue.queued_by_tenant()


def test_seats_come_back_one_a_second(bench: Callable[..., Bench]) -> None:
    b = bench(6)
    places = b.join(A, num_places=20)
    b.figures.num_preemptions = 1
    b.timer.advance(0.06)
    places[0].leave()
    b.figures.num_preemptions = 2
    b.timer.advance(0.06)
    allowed = []
    for _ in range(5):
        allowed.append(b.queue.num_allowed)
        b.timer.advance(0.7)
    assert [4, 4, 5, 6, 6] == allowed


def test_what_gets_seats_at_once_needs_no_room_in_the_queue(bench: Callable[..., Bench]) -> None:
    b = bench(3, max_queued_per_tenant=1, max_queued=1)
    assert [True, True, True, False] == [place.is_seated for place in b.join(A, num_places=4)]
    with pytest.raises(OverloadedError):
        b.one(B)


def test_who_is_ahead_is_remembered_until_the_others_are_there(bench: Callable[..., Bench]) -> None:
    b = bench(1, prefix_quantum_tokens=5000)
    places = [b.one(B, 100, prefix_key=b"%d" % number) for number in range(200)]
    for _ in range(2):
        places.append(b.one(A, 1000, prefix_key=b"a"))
        while not places[-1].is_seated:
            serve_all(b, places, most=1)
        serve_all(b, places, most=1)
    ahead = b.counter(A)
    assert ahead >= 2000
    while (least := b.queue.least) is not None and least / UNIT < ahead:
        assert b.queue.accounts.get("a") is not None
        serve_all(b, places, most=1)
    serve_all(b, places, most=1)
    assert b.queue.accounts.get("a") is None
