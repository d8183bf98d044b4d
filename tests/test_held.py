"""What requests hold: bounded for each tenant and for all, given back to the byte."""

from __future__ import annotations

import random

import pytest

from server.errors import OverloadedError, RateLimitError
from server.held import HeldBytes


def test_one_tenant_may_hold_a_quarter() -> None:
    held = HeldBytes(400)
    held.take("a", 100)
    with pytest.raises(RateLimitError) as caught:
        held.take("a", 1)
    assert ("held_bytes", 1) == (caught.value.reason, caught.value.retry_after_s)
    held.take("b", 100)
    held.give("a", 1)
    held.take("a", 0)
    assert 200 == held.total


def test_all_tenants_together_are_bounded() -> None:
    held = HeldBytes(400)
    for tenant in "abcd":
        held.take(tenant, 100)
    with pytest.raises(OverloadedError):
        held.take("e", 1)
    held.give("e", 1)
    held.give("a", 100)
    held.take("e", 100)


def test_what_a_finaliser_gives_is_counted_at_the_next_look() -> None:
    held = HeldBytes(400)
    held.take("a", 90)
    held.forget("a", 80)
    held.take("a", 90)
    held.forget("a", 100)
    assert 0 == held.total


def test_everything_is_given_back_whatever_was_refused() -> None:
    rng, held = random.Random(1), HeldBytes(10_000)
    taken: list[tuple[str, int]] = []
    for _ in range(5000):
        if taken and rng.random() < 0.5:
            held.give(*taken.pop(rng.randrange(len(taken))))
            continue
        some = (rng.choice("abcdef"), rng.randint(0, 900))
        taken.append(some)
        try:
            held.take(*some)
        except (RateLimitError, OverloadedError):
            held.give(*taken.pop())
        assert sum(num for _, num in taken) == held.total <= 10_000
    for some in taken:
        held.give(*some)
    assert 0 == held.total
    assert not held._of_tenant
