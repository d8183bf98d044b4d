"""The queue before the engine: who gets a seat, who waits, and what is left of those who don't want to any more."""

from __future__ import annotations

import asyncio

import pytest

from server.errors import QueueTimeoutError
from tests.admission.queues import A, B, Bench, C, serve_all, start


def test_there_are_never_more_seated_than_seats() -> None:
    b = Bench(3)
    places = b.join(A, num_places=2) + b.join(B, num_places=4)
    assert [True] * 3 + [False] * 3 == [place.is_seated for place in places]
    assert (3, 3, {"b": 3}) == (b.queue.num_seated, b.queue.num_queued, b.queue.queued_by_tenant())
    places[0].leave()
    assert [3] == [index for index in range(3, 6) if places[index].is_seated]
    for place in places:
        place.leave()
    b.assert_empty()


def test_leaving_twice_frees_one_seat() -> None:
    b = Bench(1)
    first, second, third = b.join(A, num_places=3)
    first.leave()
    first.leave()
    assert (True, False) == (second.is_seated, third.is_seated)


async def test_waiting_ends_with_a_seat() -> None:
    b = Bench(1)
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
async def test_a_client_that_leaves_the_queue_leaves_no_trace(is_seated_first: bool) -> None:
    """Also when it is given a seat in the same turn of the loop, before or after."""
    b = Bench(1)
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


async def test_leaving_ends_the_wait_of_another_task() -> None:
    b = Bench(1)
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


async def test_who_waits_too_long_is_told_so_and_is_gone() -> None:
    b = Bench(1, queue_timeout_s=10)
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


def test_ties_go_to_who_came_first() -> None:
    b = Bench(1)
    places = [b.one(tenant) for tenant in (A, C, B, A, B, C)]
    assert "acb" == serve_all(b, places)[:3]


def test_classes_are_the_tenants_own_affair() -> None:
    b = Bench(1)
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


def test_nonsense_is_refused() -> None:
    b = Bench(1)
    for wrong in ({"num_places": 0}, {"service_class": 3}, {"service_class": -1}):
        with pytest.raises(ValueError, match="can't be asked for"):
            b.join(A, **wrong)
    b.assert_empty()
