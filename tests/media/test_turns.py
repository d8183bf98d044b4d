"""Tenants take turns, whatever one of them sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import RateLimitError
from server.media.turns import Turns

Job = tuple[str, int]


def taken(turns: Turns[Job]) -> list[Job]:
    jobs: list[Job] = []
    while (job := turns.take()) is not None:
        jobs.append(job)
    return jobs


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=60))
def test_nobody_waits_for_more_than_one_job_of_each_other_tenant(arrivals: list[tuple[str, bool]]) -> None:
    turns: Turns[Job] = Turns(100)
    waiting: dict[str, list[Job]] = {}
    for number, (tenant, leaves) in enumerate(arrivals):
        job = (tenant, number)
        turns.join(tenant, job)
        waiting.setdefault(tenant, []).append(job)
        if leaves:
            turns.leave(tenant, job)
            waiting[tenant].remove(job)
    order = taken(turns)

    assert sorted(job for jobs in waiting.values() for job in jobs) == sorted(order)
    for tenant, jobs in waiting.items():
        own = [place for place, job in enumerate(order) if job[0] == tenant]
        assert jobs == [order[place] for place in own], "in the order in which they came"
        for before, after in zip([-1, *own], own, strict=False):
            between = [job[0] for job in order[before + 1 : after]]
            assert len(between) == len(set(between)), "each other tenant had one turn at most"
    assert 0 == len(turns)


def test_too_many_of_one_tenant_are_refused_and_others_are_not() -> None:
    turns: Turns[Job] = Turns(2)
    for number in range(2):
        turns.join("a", ("a", number))

    with pytest.raises(RateLimitError) as raised:
        turns.join("a", ("a", 2))
    turns.join("b", ("b", 0))
    turns.leave("a", ("a", 0))
    turns.join("a", ("a", 3))

    assert ("image_queue_full", "`2` images") == (raised.value.reason, raised.value.message[:10])
    assert [("a", 1), ("b", 0), ("a", 3)] == taken(turns)


def test_who_has_enough_under_way_waits_while_others_go_on() -> None:
    turns: Turns[Job] = Turns(9, max_at_once=2)
    for number in range(4):
        turns.join("a", ("a", number))
    assert [("a", 0), ("a", 1)] == taken(turns)
    turns.join("b", ("b", 0))
    assert [("b", 0)] == taken(turns)
    turns.end("a")
    assert [("a", 2)] == taken(turns)
    for tenant in "aab":
        turns.end(tenant)
    assert [("a", 3)] == taken(turns)
    assert 0 == len(turns)


def test_all_that_wait_can_be_told_to_go() -> None:
    turns: Turns[Job] = Turns(9, max_at_once=1)
    for tenant in "aab":
        turns.join(tenant, (tenant, len(turns)))
    turns.join("a", ("a", 9), is_urgent=True)
    assert ("a", 9) == turns.take()
    assert {("a", 0), ("a", 1), ("b", 2)} == set(turns.clear())
    assert 0 == len(turns)


def test_what_is_urgent_goes_first_of_its_tenant_and_is_never_too_much() -> None:
    turns: Turns[Job] = Turns(1)
    turns.join("a", ("a", 0))
    turns.join("b", ("b", 0))
    for number in (1, 2, 3):
        turns.join("a", ("a", number), is_urgent=True)
    turns.leave("a", ("a", 2))
    with pytest.raises(RateLimitError):
        turns.join("a", ("a", 4))

    assert 4 == len(turns)
    assert [("a", 1), ("b", 0), ("a", 3), ("a", 0)] == taken(turns)


def test_who_leaves_twice_or_never_came_changes_nothing() -> None:
    turns: Turns[Job] = Turns(2)
    turns.join("a", ("a", 0))
    turns.leave("b", ("b", 0))
    turns.leave("a", ("a", 1))
    assert ("a", 0) == turns.take()
    turns.leave("a", ("a", 0))

    assert turns.take() is None
