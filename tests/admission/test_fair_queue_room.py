"""How many may wait and run: bounds, reserved seats, and an engine under pressure."""

from __future__ import annotations

import contextlib

import pytest

from server.context import Tenant
from server.errors import OverloadedError, RateLimitError
from tests.admission.queues import A, B, Bench, C, start


async def test_what_was_reserved_for_nothing_is_given_back() -> None:
    b = Bench(1)
    first = b.one(A, 1000, 4000)
    waiting = b.one(A, 1)
    await first.wait()
    first.prefilled(0)
    first.produced(10)
    first.leave()
    assert 1000 + 50 + 1 == b.counter(A)
    waiting.leave()


def test_a_tenants_queue_is_bounded() -> None:
    b = Bench(1, max_queued_per_tenant=3)
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


def test_the_queue_is_bounded_and_a_refusal_leaves_nothing() -> None:
    b = Bench(1, max_queued=5, max_queued_per_tenant=4)
    places = b.join(A, num_places=4) + b.join(B, num_places=2)
    with pytest.raises(OverloadedError, match="the queue is full; try") as raised:
        b.one(C)
    assert raised.value.retry_after_s
    assert b.queue.accounts.get("c") is None
    for place in places:
        place.leave()
    b.assert_empty()


def test_a_flood_does_not_fill_the_queue() -> None:
    """Of tenants that each stay within their bound: others find a place, however many they are."""
    b = Bench(1, max_queued=200, max_queued_per_tenant=100)
    for number in range(1000):
        with contextlib.suppress(OverloadedError, RateLimitError):
            b.one(Tenant(f"flood{number % 10}"))
    assert b.queue.num_queued > 190
    b.one(C)
    b.one(B)
    assert {"b": 1, "c": 1}.items() <= b.queue.queued_by_tenant().items()


def test_a_flood_leaves_room_for_a_light_tenant() -> None:
    b = Bench(32, reserved_seats=None)
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


def test_reserved_seats_are_no_way_to_more_than_the_share() -> None:
    """Whoever asks for much by few requests holds few seats; its service stays what the weights say."""
    b = Bench(8, reserved_seats=2)
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
def test_not_all_seats_are_reserved(wanted: int) -> None:
    b = Bench(2, reserved_seats=wanted)
    places = b.join(A, num_places=2)
    assert places[0].is_seated


def test_a_full_cache_gives_no_seats_but_one() -> None:
    b = Bench(4)
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


def test_after_a_preemption_seats_are_fewer_and_come_back_one_by_one() -> None:
    b = Bench(6)
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


def test_lasting_pressure_sheds_what_would_wait() -> None:
    b = Bench(4)
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


def test_pressure_that_nobody_saw_last_is_not_lasting() -> None:
    b = Bench(4)
    places = b.join(A, num_places=1)
    b.figures.kv_cache_usage = 0.99
    places += b.join(B)
    places[1].leave()
    b.timer.advance(20)
    b.one(C)
    assert {"c": 1} == b.queue.queued_by_tenant()


def test_seats_come_back_one_a_second() -> None:
    b = Bench(6)
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


def test_what_gets_seats_at_once_needs_no_room_in_the_queue() -> None:
    b = Bench(3, max_queued_per_tenant=1, max_queued=1)
    assert [True, True, True, False] == [place.is_seated for place in b.join(A, num_places=4)]
    with pytest.raises(OverloadedError):
        b.one(B)
