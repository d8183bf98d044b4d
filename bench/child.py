"""A process of a measurement, which is talked to in lines: a server, or who sends to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bench.processes import Process, python


class Child:
    """A process that is ready and is talked to in lines. `ready`: the words it said when it was.

    It has a session of its own, so that the system shares processors between it and others, and not between it and who measures.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = Process(python(*command), own_session=True)
        self.pid = self._process.pid
        self.ready = self._process.wait_ready()

    def ask(self, line: str) -> dict[str, Any]:
        """The answer to `line`."""
        answer: dict[str, Any] = json.loads(self._process.ask(line))
        return answer

    def tell(self, line: str) -> None:
        """Say `line`, which has no answer."""
        self._process.tell(line)

    def stop(self) -> None:
        """End it."""
        self._process.stop()
