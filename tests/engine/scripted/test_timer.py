"""Time that a test moves."""

from __future__ import annotations

from server.clock import ManualClock
from server.engine.scripted.timer import ManualTimer


def test_alarms_ring_in_order_when_they_are_due() -> None:
    clock, rung = ManualClock(), []
    timer = ManualTimer(clock)
    start_s = clock.monotonic_s()
    for name, delay_s in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("d", 9.0)):
        timer.call_later(delay_s, lambda name=name: rung.append((name, clock.monotonic_s() - start_s)))
    timer.advance(0.5)
    assert [] == rung
    timer.advance(2.5)
    assert [("a", 1.0), ("b", 2.0), ("c", 3.0)] == rung
    assert [6.0] == timer.pending
    assert 3.0 == clock.monotonic_s() - start_s


def test_a_cancelled_alarm_does_not_ring() -> None:
    timer, rung = ManualTimer(), []
    alarm = timer.call_later(1.0, lambda: rung.append("late"))
    alarm.cancel()
    assert [] == timer.pending
    timer.advance(5.0)
    assert [] == rung


def test_an_alarm_set_while_ringing_rings_in_the_same_advance() -> None:
    timer, rung = ManualTimer(), []
    timer.call_later(1.0, lambda: timer.call_later(1.0, lambda: rung.append("second")))
    timer.advance(2.0)
    assert ["second"] == rung
