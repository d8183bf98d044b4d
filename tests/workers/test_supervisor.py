"""What the supervisor does before its workers are there."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

from server.settings import Settings
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
