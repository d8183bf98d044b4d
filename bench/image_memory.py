"""What a server holds in memory, seen from outside: also where it is not in its heap."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil  # type: ignore[import-untyped]


class Memory:
    """What a server and its children hold, in bytes: resident memory, and files in memory that only they see."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._children: list[psutil.Process] = []
        self.peak = 0

    def find_children(self) -> None:
        """Looks through all processes of the machine, which takes a while."""
        self._children = self._process.children(recursive=True)

    def server(self) -> int:
        """Resident memory of the server alone."""
        return int(self._process.memory_info().rss)

    def whole(self) -> int:
        """All of it. Pages that two of them have mapped count twice."""
        total = self._files() + self.server()
        for child in self._children:
            with suppress(psutil.Error):
                total += child.memory_info().rss
        self.peak = max(self.peak, total)
        return total

    def _files(self) -> int:
        files: dict[int, int] = {}
        folder = f"/proc/{self._process.pid}/fd"
        for name in os.listdir(folder):
            with suppress(OSError):
                if os.readlink(f"{folder}/{name}").startswith("/memfd:"):
                    status = os.stat(f"{folder}/{name}")
                    files[status.st_ino] = status.st_blocks * 512
        return sum(files.values())
