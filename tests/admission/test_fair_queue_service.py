"""What tenants are charged, and who is next by it."""

from __future__ import annotations

import pytest

from server.admission.service import UNIT
from server.context import Tenant
from server.models import Price
from tests.admission.queues import A, B, Bench, C, serve_all, start


def test_weights_are_the_shares_of_service() -> None:
    b = Bench(1)
    one, three = Tenant("a", weight=1), Tenant("b", weight=3)
    places = [b.one(tenant) for _ in range(300) for tenant in (one, three)]
    served = serve_all(b, places, most=200)
    assert 50 == pytest.approx(served.count("a"), abs=1)


def test_what_is_cheap_is_served_more_often() -> None:
    """By the prices: 100 input and 10 output tokens at 1 : 20 are as much as 300 input tokens."""
    b = Bench(1)
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


async def test_the_charge_becomes_the_truth() -> None:
    b = Bench(1)
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


async def test_a_prompt_that_may_have_been_read_is_paid_for() -> None:
    b = Bench(1)
    first = b.one(A, 1000, 4000)
    await first.wait()
    first.leave()
    assert {"a": 1000.0} == b.queue.take_service()
    second = b.one(A, 1000, 4000)
    second.leave()
    assert {} == b.queue.take_service(), "it had not begun to wait for the engine"


async def test_service_does_not_depend_on_the_weight() -> None:
    b = Bench(1)
    first = b.one(Tenant("a", weight=4), 1000, 10)
    await first.wait()
    assert (1000 + 50) / 4 == b.counter(A)
    first.prefilled(0)
    assert {"a": 1000.0} == b.queue.take_service()
    first.leave()


async def test_a_new_weight_holds_from_the_next_charge() -> None:
    b = Bench(1)
    first = b.one(Tenant("a", weight=1), 1000, 10)
    await first.wait()
    second = b.one(Tenant("a", weight=2), 1000)
    first.leave()
    assert 1000 + 500 == b.counter(A)
    second.leave()


def test_time_without_requests_is_no_credit() -> None:
    b = Bench(1)
    places = [b.one(tenant) for _ in range(50) for tenant in (A, B)]
    serve_all(b, places, most=60)
    places += [b.one(C) for _ in range(20)]
    served = serve_all(b, places, most=30)
    assert 10 == pytest.approx(served.count("c"), abs=1)


def test_who_comes_back_is_not_put_back() -> None:
    """A debt stays where the tenant has nothing to ask for meanwhile."""
    b = Bench(1)
    places = [b.one(B, 100) for _ in range(200)]
    places.append(b.one(A, 10_000))
    assert "bba" == serve_all(b, places, most=3)
    places.append(b.one(A, 1))
    assert 100 == pytest.approx(serve_all(b, places, most=150).index("a"), abs=2)


def test_a_hot_prefix_is_preferred_within_the_quantum_and_no_further() -> None:
    b = Bench(1, prefix_quantum_tokens=500)
    places = []
    for number in range(40):
        places += [b.one(A, 100, prefix_key=b"a"), b.one(B, 100, prefix_key=b"b%d" % number)]
    served = serve_all(b, places, most=40)
    assert served.startswith("aaaaaa")
    gaps = [served[:count].count("a") - served[:count].count("b") for count in range(1, 41)]
    assert max(gaps) <= 2 + 5, "of which the first came when nobody waited"
    assert min(gaps[10:]) >= 0


def test_no_prefix_is_none() -> None:
    b = Bench(1, prefix_quantum_tokens=500)
    places = [b.one(tenant, 100) for _ in range(10) for tenant in (A, B)]
    assert "ab" * 5 == serve_all(b, places, most=10)


def test_who_is_gone_is_forgotten() -> None:
    b = Bench(2)
    for number in range(1000):
        place = b.one(Tenant(f"t{number}"), 100 + number % 7)
        start(place)
        place.leave()
    assert len(b.queue.accounts) <= 7
    b.assert_empty()


def test_who_is_ahead_is_remembered_until_the_others_are_there() -> None:
    b = Bench(1, prefix_quantum_tokens=5000)
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
