"""Takes the engine's processes along when the gateway is killed.

Role: vLLM's engine process does not notice that the one which started it is gone, and keeps its memory, or its GPUs, for good.
The end of a container or a service takes everything along; a `kill -9` in a terminal does not, nor does a kernel short of memory.
Invariant: a guard ends processes only if its own process has ended without `release`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from contextlib import suppress

# The shell reads until a line comes (released) or the other end of the pipe is closed, which the kernel sees to in any case.
_SCRIPT = 'read -r _ || kill -9 "$@"'


class Guard:
    """Watches over processes, by id. In a session of its own, so that a terminal's signals do not reach it."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "engine-guard", *map(str, pids)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def release(self) -> None:
        """Let the processes be. May be called twice."""
        with suppress(BrokenPipeError, ValueError):
            self._shell.communicate(b"\n")
