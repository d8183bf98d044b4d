"""Fair queues of several workers that give out the seats of one engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.admission.fair_queue import SHARED_POLL_S, FairQueue
from server.admission.place import Place
from server.clock import ManualClock
from server.context import Tenant
from server.engine.base import EngineStats, EngineStep
from server.engine.scripted.timer import ManualTimer
from server.models import Price
from server.sections import AdmissionSettings
from server.workers.board import NUM_NUMBERS, PATIENCE_S, Board
from tests.admission.queues import start

SETTINGS = AdmissionSettings(reserved_seats=0, prefix_quantum_tokens=0)


class Workers:
    """Their queues, in time that moves when told to."""

    def __init__(self, count: int, num_seats: int) -> None:
        self.timer = ManualTimer(ManualClock())
        numbers = [0.0] * (count * NUM_NUMBERS)
        self.boards = [Board(numbers, index, self.timer.clock) for index in range(count)]
        self.queues = [
            FairQueue(num_seats, SETTINGS, self.timer.clock, EngineStats(), board, call_later=self.timer.call_later)
            for board in self.boards
        ]

    def join(self, worker: int, tenant: Tenant, num_input: int = 100) -> Place:
        (place,) = self.queues[worker].join(tenant, Price(), num_places=1, num_input_tokens=num_input, num_output_tokens=0)
        return place

    @property
    def num_seated(self) -> int:
        return sum(queue.num_seated for queue in self.queues)

    def go(self, seconds: float) -> None:
        """Let time pass, in steps in which queues look again."""
        for _ in range(round(seconds / SHARED_POLL_S)):
            self.timer.advance(SHARED_POLL_S)


def test_seats_are_those_of_all_together() -> None:
    workers = Workers(2, 3)
    places = [workers.join(number % 2, Tenant("a")) for number in range(6)]

    assert [True] * 3 + [False] * 3 == [place.is_seated for place in places]
    assert [2, 1] == [queue.num_seated for queue in workers.queues]


def test_one_that_has_all_to_itself_takes_all_seats() -> None:
    workers = Workers(3, 8)
    places = [workers.join(1, Tenant("a")) for _ in range(9)]

    assert 8 == sum(place.is_seated for place in places)


def test_a_seat_that_comes_free_elsewhere_is_taken() -> None:
    workers = Workers(2, 1)
    there, here = workers.join(0, Tenant("a")), workers.join(1, Tenant("b"))
    assert not here.is_seated
    there.leave()
    workers.go(SHARED_POLL_S)

    assert here.is_seated


def test_who_was_given_least_comes_first_wherever_it_waits() -> None:
    workers = Workers(2, 1)
    running = workers.join(0, Tenant("a"), 5000)
    again, other = workers.join(0, Tenant("a")), workers.join(1, Tenant("b"))
    start(running)
    running.leave()  # a seat comes free where the one that had more waits
    assert (False, False) == (again.is_seated, other.is_seated)
    workers.go(SHARED_POLL_S)

    assert (False, True) == (again.is_seated, other.is_seated)


def test_a_seat_is_not_kept_for_a_worker_that_does_not_take_it() -> None:
    workers = Workers(2, 1)
    running, again = workers.join(0, Tenant("a"), 5000), workers.join(0, Tenant("a"))
    workers.boards[1].tell(0, 1, 0)  # somebody waits there, and its worker stands still
    start(running)
    running.leave()
    assert not again.is_seated
    workers.go(PATIENCE_S + 2 * SHARED_POLL_S)

    assert again.is_seated


def test_patience_begins_anew_with_each_seat_that_was_taken() -> None:
    workers = Workers(2, 1)
    board, other = workers.boards
    other.tell(0, 2, 0)
    assert board.come_first(1000)
    workers.timer.advance(PATIENCE_S)
    other.tell(1, 1, 0)
    other.tell(0, 1, 0)

    assert board.come_first(1000)
    workers.timer.advance(PATIENCE_S)
    assert not board.come_first(1000)


def test_what_one_hears_of_the_engine_all_know() -> None:
    workers = Workers(2, 1)
    first, second = workers.boards
    first.hear(EngineStats(num_preemptions=2, steps={0: EngineStep(10.0, 1, 0, 0.5)}))
    second.hear(EngineStats(num_preemptions=3, steps={0: EngineStep(11.0, 1, 0, 0.75)}))

    assert [(0.75, 5)] * 2 == [(board.kv_cache_usage, board.num_preemptions) for board in workers.boards]
    first.hear(EngineStats(num_preemptions=2, steps={0: EngineStep(12.0, 1, 0, 0.25)}))
    assert [0.25] * 2 == [board.kv_cache_usage for board in workers.boards]


STEPS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.integers(0, 5)), max_size=60)


@pytest.mark.parametrize("num_seats", [1, 3])
@given(steps=STEPS)
def test_no_seat_is_given_twice_and_none_is_left_free(num_seats: int, steps: list[tuple[int, str, int]]) -> None:
    """Requests come to any worker and leave in any order; after a moment each free seat has been taken by somebody who waited."""
    workers = Workers(3, num_seats)
    places: list[Place] = []
    for worker, tenant, number in steps:
        if number < 3 or not places:
            places.append(workers.join(worker, Tenant(tenant), 100 * (number + 1)))
        else:
            places.pop(number % len(places)).leave()
        assert workers.num_seated <= num_seats
    workers.go(PATIENCE_S + 3 * SHARED_POLL_S)

    assert min(num_seats, len(places)) == workers.num_seated
    for place in places:
        place.leave()
    workers.go(SHARED_POLL_S)
    assert ([], 0) == (workers.timer.pending, workers.num_seated)
