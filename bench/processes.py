"""Processes that are measured from outside.

Invariant: what a process has used is asked of the kernel for the whole process; a sum over its threads would lose those that have
ended.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


class NotStartedError(Exception):
    """Says why."""


def python(module: str, *arguments: object) -> list[str]:
    """The command that runs a module of the checkout."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def end_on_sigterm() -> None:
    """Have SIGTERM end this process as Ctrl-C does: by an exception, at which its servers are ended and its folders removed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def allow_many_files() -> None:
    """As many open connections as the system lets this process and its children have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Process:
    """A process that prints `ready` once it can be measured, and ends when told to. It runs in the checkout's folder.

    `says_ready`: False for one that does not, and is to be asked. What it writes to standard error goes to a file, as a service's
    log does.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        says_ready: bool = True,
        own_session: bool = False,
    ) -> None:
        self._says_ready = says_ready
        self._errors = tempfile.TemporaryFile(prefix="k3gw-bench-")  # noqa: SIM115 - closed in `stop`
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if says_ready else subprocess.DEVNULL,
            stderr=self._errors,
            text=True,
            start_new_session=own_session,
        )
        self.pid = self._process.pid

    def wait_ready(self) -> list[str]:
        """Return when it can be measured: the words of the line that says so. Raises `NotStartedError` with its last words."""
        if not self._says_ready:
            return []
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("ready"):
                return line.split()
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        raise NotStartedError(words[-1][:300] if words else "it ended without a word")

    def ask(self, line: str) -> str:
        """Write a line to it and read one."""
        self.tell(line)
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise NotStartedError(f"the process ended when it was asked `{line}`")
        return answer

    def tell(self, line: str) -> None:
        """Write a line to it."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return self._process.poll() is not None

    @property
    def cpu_s(self) -> float:
        """CPU seconds that it has used, to the nanosecond. Source: `clock_getcpuclockid(3)` on Linux."""
        return time.clock_gettime((~self.pid << 3) | 2)

    @property
    def rss_bytes(self) -> int:
        """Resident memory."""
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def collect_garbage(self) -> None:
        """Have a server of `bench.frontends` do so; returns when it is done."""
        self._process.send_signal(signal.SIGUSR1)
        assert self._process.stdout is not None
        while self._process.stdout.readline() != "collected\n":
            if self.has_ended:
                raise NotStartedError("the process ended when its garbage was to be collected")

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
