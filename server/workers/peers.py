"""How a worker asks the others for their part of what it is asked about all of them: metrics, status, the dashboard.

Role: beside the requests. Each worker listens on a Unix socket in a folder that is the gateway's alone. A question is two frames,
its name and an argument; the answer is frames, the last of them empty. A frame is its length, four bytes, and so many bytes.
Invariant: answers come in the order of the workers, so that sums of the same numbers are the same whoever adds them up.
Must not: trust a frame with more than text and JSON, or wait longer than `DEADLINE_S`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from server.errors import OverloadedError

DEADLINE_S: Final = 5.0
MAX_QUESTION_BYTES: Final = 64 * 1024
_LENGTH_BYTES: Final = 4

Answer = Callable[[bytes], AsyncIterator[bytes]]
logger = logging.getLogger(__name__)


class Peers:
    """The workers of one gateway, of which this is number `index` of `count`. `answers`: question -> how this one answers it."""

    def __init__(self, folder: Path, index: int, count: int, answers: Mapping[str, Answer]) -> None:
        self.index = index
        self._folder = folder
        self.count = count
        self._answers = answers

    async def run(self) -> None:
        """Answer, until cancelled."""
        server = await asyncio.start_unix_server(self._serve, self._path(self.index))
        async with server:
            await server.serve_forever()

    async def ask_all(self, question: str, argument: bytes = b"") -> list[list[bytes]]:
        """The frames of each worker's answer, this one's too, in the order of the workers. Raises `OverloadedError`."""
        return list(await asyncio.gather(*(self.ask(index, question, argument) for index in range(self.count))))

    async def ask(self, index: int, question: str, argument: bytes = b"") -> list[bytes]:
        """The frames of one worker's answer. Raises `OverloadedError` where it does not answer in time."""
        if index == self.index:
            return [frame async for frame in self._answers[question](argument)]
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._exchange(index, question, argument)
        except (OSError, EOFError, TimeoutError):
            raise OverloadedError(f"worker {index} of this replica does not answer; try again in a moment") from None

    async def _exchange(self, index: int, question: str, argument: bytes) -> list[bytes]:
        reader, writer = await asyncio.open_unix_connection(self._path(index))
        try:
            _write(writer, question.encode())
            _write(writer, argument)
            frames = []
            while frame := await _read(reader):
                frames.append(frame)
            return frames
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            question = (await _read(reader, MAX_QUESTION_BYTES)).decode()
            argument = await _read(reader, MAX_QUESTION_BYTES)
            async for frame in self._answers[question](argument):
                if frame:
                    _write(writer, frame)
                    await writer.drain()
            _write(writer, b"")
            await writer.drain()
        except (OSError, EOFError):
            pass  # who asked is gone
        except Exception:
            logger.exception("a question of another worker could not be answered")
        finally:
            with suppress(OSError):
                writer.close()

    def _path(self, index: int) -> str:
        return str(self._folder / f"{index}.sock")


def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)


async def _read(reader: asyncio.StreamReader, most: int = 1 << 31) -> bytes:
    """Raises `EOFError` where the other side is gone."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if length > most:
        raise EOFError(f"a frame of {length} bytes")
    return await reader.readexactly(length)
