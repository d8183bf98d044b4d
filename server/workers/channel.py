"""What the supervisor and a worker say to each other: JSON, a line each, over a pair of sockets that nobody else has.

Role: between two processes of one gateway. Invariant: whoever is gone is noticed: its end of the pair is closed by the kernel.
Must not: carry anything of a request.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Literal

MAX_LINE_BYTES = 64 * 1024
MAX_TEXT_CHARS = 8000  # each may take six bytes in JSON

ToWorker = Literal["ready", "drain", "hurry", "end", "lost", "reload"]
"""`ready`: all workers are up; `drain`: take no more requests; `hurry`: end what is under way; `end`: stop; `lost`: the engine or
a worker has died, so end everything with an error; `reload`: read the configuration again."""

FromWorker = Literal["first_key", "up", "drain", "drained", "failed"]
"""`first_key`: the store was empty, and this key was made; `up`: requests could be taken; `drain`: an operator asks for it;
`drained`: nothing is under way any more; `failed`: it can't go on."""

Word = ToWorker | FromWorker


class Channel:
    """One end. `pair` gives the sockets of both."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._unsaid: list[bytes] = []

    async def open(self) -> None:
        """On the event loop that uses it from then on."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._end, limit=MAX_LINE_BYTES)
        self._writer.writelines(self._unsaid)

    def say(self, word: Word, text: str = "") -> None:
        """To the other side, if it is there; once this is open. Never raises."""
        line = json.dumps([word, text[:MAX_TEXT_CHARS]]).encode() + b"\n"
        if self._writer is None:
            self._unsaid.append(line)
        elif not self._writer.is_closing():
            with suppress(OSError):
                self._writer.write(line)

    async def heard(self) -> AsyncIterator[tuple[Word, str]]:
        """What the other side says, each with its text, until it is gone."""
        assert self._reader is not None
        with suppress(OSError):
            while (line := await self._reader.readline()).endswith(b"\n"):  # else its sender has died over it
                word, text = json.loads(line)
                yield word, text

    def close(self) -> None:
        """The other side sees that this one is gone."""
        if self._writer is not None:
            self._writer.close()
        else:
            self._end.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends; one goes to the worker."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
