"""Bytes that came with a request and are too many to carry through the event loop: kept in a file without a name.

Role: what a body's images, and fetched ones, are kept in until they are decoded in another process, which is handed the file.
Invariant: nothing here is written to a disk where the system has memory files; what is closed, or forgotten, is gone. Giving
back much memory takes the system milliseconds, one for each six megabytes: where there is an event loop, it is done beside it.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

CLOSED_AT_ONCE_BYTES: Final = 4_000_000


class PayloadFile:
    """A growing file in memory. Closed by `close`, or when nothing refers to it any more."""

    def __init__(self, descriptor: int | None = None) -> None:
        """`descriptor`: of a file that is there, and belongs to this object from now on."""
        self._descriptor = _memory_file() if descriptor is None else descriptor
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self.num_bytes = 0

    def fileno(self) -> int:
        """The descriptor. Raises `ValueError` where the file is closed: its number may be another file's by now."""
        if not self._close.alive:
            raise ValueError("the file is closed")
        return self._descriptor

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Write `data` behind what is there."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.fileno(), view) :]
        self.num_bytes += len(data)

    def duplicate(self) -> PayloadFile:
        """Another handle of the same bytes, closed on its own; neither is to be appended to any more."""
        twin = PayloadFile(os.dup(self.fileno()))
        twin.num_bytes = self.num_bytes
        return twin

    def close(self) -> None:
        """Give the memory back. May be called twice."""
        if self._close.detach() is not None:
            _give_back(self.num_bytes, partial(os.close, self._descriptor))


@dataclass(slots=True, frozen=True)
class Payload:
    """`num_bytes` bytes of `file` from `offset` on. `is_base64`: they are the text of bytes, not the bytes."""

    file: PayloadFile
    offset: int
    num_bytes: int
    is_base64: bool = False

    def read(self) -> bytes:
        """All of it, as it is stored."""
        return os.pread(self.file.fileno(), self.num_bytes, self.offset)


def _give_back(num_bytes: int, close: Callable[[], None]) -> None:
    """Call `close`, which gives so much memory back: at once, or in another thread where the event loop would wait for it."""
    if num_bytes > CLOSED_AT_ONCE_BYTES:
        with suppress(RuntimeError):  # no loop, no hurry
            asyncio.get_running_loop().run_in_executor(None, close)
            return
    close()


def _memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("payload", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())
