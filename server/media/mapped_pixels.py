"""Pixels that another process has written, without a copy.

Role: what `DecodePool.pixels` gives to the engine.
Invariant: the file has as many bytes as the picture needs, and can't be cut: reading beyond a file's end would kill the gateway.
"""

from __future__ import annotations

import mmap
import os
import sys
from contextlib import suppress
from typing import Final, Literal

from server.payload import PayloadFile

_NUM_CHANNELS: Final = {"RGB": 3, "RGBA": 4}


class MappedPixels:
    """As `server.images.Pixels` says: the pixels in `file`, a descriptor that stays the caller's. They are read-only.

    Raises `ValueError` where they are not in it.
    """

    def __init__(self, file: int, mode: str, width: int, height: int) -> None:
        num_bytes = width * height * _NUM_CHANNELS.get(mode, 0)
        if width < 1 or height < 1 or num_bytes < 1 or os.fstat(file).st_size != num_bytes:
            raise ValueError("the file of pixels has another size than the picture")
        if sys.platform == "linux":
            import fcntl

            if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise ValueError("the file of pixels may still be cut")
        self.mode: Literal["RGB", "RGBA"] = "RGBA" if mode == "RGBA" else "RGB"
        self.width = width
        self.height = height
        self._memory = mmap.mmap(file, num_bytes, access=mmap.ACCESS_READ)
        self._file = PayloadFile(os.dup(file))  # the last to go, as it knows how to give back much
        self._file.num_bytes = num_bytes
        self.data = memoryview(self._memory).cast("B", (height, width, _NUM_CHANNELS[mode]))

    def close(self) -> None:
        """Give the memory back; where something still looks at it, once it does no more. May be called twice."""
        with suppress(BufferError):
            self.data.release()
            self._memory.close()
        self._file.close()
