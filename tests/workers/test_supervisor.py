"""What the supervisor does before its workers are there."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from server.settings import Settings
from server.workers import supervisor
from server.workers.supervisor import Supervisor


class Early(Supervisor):
    """Is told to stop while it starts its workers."""

    def _start_workers(self, listeners: list[socket.socket]) -> list[socket.socket]:
        os.kill(os.getpid(), signal.SIGTERM)
        return []


async def test_a_signal_that_comes_while_workers_are_started_drains(tmp_path: Path) -> None:
    missed: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: missed.append(number))
    try:
        code = await Early(Settings(), None, {}, tmp_path).run([])
    finally:
        signal.signal(signal.SIGTERM, before)

    assert (0, []) == (code, missed)


class FewProcesses:
    """A way to start processes on a machine that has room for one more."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def Process(self, name: str, **_: Any) -> FewProcesses:
        self._name = name
        return self

    def start(self) -> None:
        if self.told:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        self.told.append(f"{self._name} is started")

    def kill(self) -> None:
        self.told.append("killed")


async def test_a_worker_that_the_machine_has_no_room_for_is_told_in_a_line_and_the_others_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = FewProcesses()
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: few)
    settings = Settings.model_validate({"engine": {"kind": "scripted"}})
    code = await Supervisor(settings, None, {}, tmp_path).run(supervisor.bind_all("127.0.0.1", 0, 3))

    assert (1, ["worker-0 is started", "killed"]) == (code, few.told)
    assert "error: can't start worker 1: Resource temporarily unavailable\n" == capsys.readouterr().err
