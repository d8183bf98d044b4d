"""Many are looked after at a steady pace, by one timer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from server.streaming import rounds
from server.streaming.rounds import Rounds


class ManualLoop:
    """A loop whose time is told."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.errors: list[dict[str, Any]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> object:
        self.timers.append((self.now_s + delay_s, call))
        return call

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def run_until(self, end_s: float) -> None:
        while self.timers and min(self.timers, key=lambda timer: timer[0])[0] <= end_s:
            self.timers.sort(key=lambda timer: timer[0])
            self.now_s, call = self.timers.pop(0)
            call()
            assert len(self.timers) <= 1
        self.now_s = end_s


class Member:
    def __init__(self, loop: ManualLoop) -> None:
        self.loop = loop
        self.joined_s = loop.now_s
        self.looks_s: list[float] = []

    def look(self) -> None:
        self.looks_s.append(self.loop.now_s)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> ManualLoop:
    found = ManualLoop()
    monkeypatch.setattr(rounds.asyncio, "get_running_loop", lambda: found)
    return found


@pytest.mark.parametrize("interval_s", [0.001, 0.05, 2.5, 15.0])
def test_each_is_looked_after_once_in_every_interval(loop: ManualLoop, interval_s: float) -> None:
    dice, rounds_of = random.Random(3), Rounds(interval_s)
    members: list[Member] = []
    for _ in range(300):
        loop.run_until(loop.now_s + dice.random() * interval_s / 50)
        members.append(Member(loop))
        rounds_of.join(members[-1])
    end_s = loop.now_s + 10 * interval_s
    loop.run_until(end_s)
    slack_s = interval_s / 4 + 1e-9
    for member in members:
        assert interval_s - slack_s <= member.looks_s[0] - member.joined_s <= interval_s + 1e-9
        steps = [later - one for one, later in zip(member.looks_s, member.looks_s[1:], strict=False)]
        assert steps == pytest.approx([interval_s] * len(steps))
        assert len(member.looks_s) >= 10
    if interval_s > 1:
        at_once = max(sum(member.looks_s[-1] == look_s for member in members) for look_s in {m.looks_s[-1] for m in members})
        assert at_once <= 60, "not all at a time"


def test_who_leaves_is_left_alone_and_nothing_runs_for_nobody(loop: ManualLoop) -> None:
    rounds_of, one, other = Rounds(1.0), Member(loop), Member(loop)
    rounds_of.leave(one)
    rounds_of.join(one), rounds_of.join(other)
    loop.run_until(0.5)
    rounds_of.leave(one)
    loop.run_until(1.5)
    assert ([], 1) == (one.looks_s, len(other.looks_s))
    rounds_of.leave(other)
    loop.run_until(9.0)
    assert [] == loop.timers
    rounds_of.join(one)
    loop.run_until(10.0)
    assert 1 == len(one.looks_s)


def test_who_joins_again_begins_again(loop: ManualLoop) -> None:
    rounds_of, member = Rounds(1.0), Member(loop)
    for _ in range(5):
        rounds_of.join(member)
        loop.run_until(loop.now_s + 0.9)
    assert [] == member.looks_s


def test_who_is_sent_away_by_another_is_not_called(loop: ManualLoop) -> None:
    rounds_of = Rounds(1.0)

    class Bouncer(Member):
        def look(self) -> None:
            super().look()
            for member in members:
                if member is not self:
                    rounds_of.leave(member)

    members = [Bouncer(loop) for _ in range(5)]
    for member in members:
        rounds_of.join(member)
    loop.run_until(5.5)
    assert [0, 0, 0, 0, 5] == sorted(len(member.looks_s) for member in members)


def test_who_fails_or_leaves_meanwhile_keeps_nobody_waiting(loop: ManualLoop) -> None:
    rounds_of = Rounds(1.0)

    class Failing(Member):
        def look(self) -> None:
            super().look()
            rounds_of.leave(self)
            raise ValueError("x")

    failing, others = Failing(loop), [Member(loop) for _ in range(5)]
    for member in (*others[:2], failing, *others[2:]):
        rounds_of.join(member)
    loop.run_until(3.1)
    assert 1 == len(failing.looks_s)
    assert [3] * 5 == [len(member.looks_s) for member in others]
    assert ["x"] == [str(error["exception"]) for error in loop.errors]
