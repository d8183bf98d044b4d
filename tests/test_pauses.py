"""A thread that works for long lets others have the interpreter every so often, and not all the time."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from server import pauses as module
from server.pauses import Pauses


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each pause was."""
    waits: list[float] = []
    monkeypatch.setattr(module, "threading", SimpleNamespace(Event=lambda: SimpleNamespace(wait=waits.append)))
    return waits


def test_it_pauses_once_some_work_is_done(paused: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 5.0
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now_s))
    pause = Pauses()
    seen = []
    for _ in range(40):
        now_s += 0.0005
        pause()
        seen.append(len(paused))
    assert 0 == seen[2]
    assert 6 <= len(paused) <= 10
    assert all(0 < wait_s < 0.001 for wait_s in paused)


def test_another_thread_runs_in_a_pause() -> None:
    """Without pauses it would get the interpreter after five milliseconds; here it has to come between two of ours."""
    pause, is_over = Pauses(), threading.Event()
    looks: list[int] = []
    turns = 0

    def look() -> None:
        while not is_over.is_set():
            looks.append(turns)
            is_over.wait(0.0001)

    thread = threading.Thread(target=look)
    thread.start()
    for turns in range(200_000):  # noqa: B007 - read by the other thread
        pause()
        if len(set(looks)) > 5:
            break
    is_over.set()
    thread.join()
    assert len(set(looks)) > 5
