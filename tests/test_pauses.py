"""A thread that works for long lets the event loop turn every so often, and not all the time."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from server import pauses as module
from server.pauses import Pauses


class Turns:
    """A loop that turns at once, and counts."""

    num = 0

    def call_soon_threadsafe(self, done: object) -> None:
        self.num += 1
        assert callable(done)
        done()


def test_it_pauses_once_some_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, turns = 5.0, Turns()
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now_s))
    pause = Pauses(turns)  # type: ignore[arg-type]
    seen = []
    for _ in range(40):
        now_s += 0.0005
        pause()
        seen.append(turns.num)
    assert 0 == seen[2]
    assert 8 <= turns.num <= 10


async def test_a_pause_lasts_until_the_loop_has_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORK_S", 0.0)
    monkeypatch.setattr(module, "_LONGEST_S", 60.0)
    pause, begun = Pauses(asyncio.get_running_loop()), threading.Event()
    passed: list[int] = []

    def work() -> None:
        begun.set()
        for number in range(5):
            pause()
            passed.append(number)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(10)
    thread.join(0.05)
    assert [] == passed  # this test has not let the loop turn
    async with asyncio.timeout(60):
        while thread.is_alive():
            await asyncio.sleep(0)
    assert [0, 1, 2, 3, 4] == passed


def test_a_loop_that_has_ended_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORK_S", 0.0)
    monkeypatch.setattr(module, "_LONGEST_S", 60.0)
    loop = asyncio.new_event_loop()
    loop.close()
    Pauses(loop)()


def test_a_loop_that_does_not_turn_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORK_S", 0.0)
    monkeypatch.setattr(module, "_LONGEST_S", 0.001)
    loop = asyncio.new_event_loop()
    Pauses(loop)()
    loop.close()
