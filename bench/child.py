"""A process of a measurement, which is talked to in lines: a server, or who sends to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from server.quoting import cut


class Child:
    """A process that is talked to in lines."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=_errors(),
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.ready = self._line().split()

    def ask(self, line: str) -> dict[str, Any]:
        """The answer to `line`."""
        self.tell(line)
        answer: dict[str, Any] = json.loads(self._line())
        return answer

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)

    def _line(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"`{cut(str(self._process.args))}` has ended")
        return line


def _errors() -> int | None:
    return None if os.environ.get("BENCH_ERRORS") else subprocess.DEVNULL
