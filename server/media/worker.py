"""One decoding process, as the gateway has it.

Role: starts `decoder.py`, asks it one thing at a time over a socket, ends it. Files are handed over as descriptors: no byte of an
image passes through the event loop.
Invariant: the process has an empty environment and none of the gateway's descriptors but its end of the socket. What it answers
is not trusted: it has read what clients send.
Must not: block the event loop, but for the millisecond or two that starting a process takes.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from server.media.bad_image import BadImageError

MAX_ANSWER_BYTES: Final = 16 * 1024
MAX_FILES: Final = 4
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_FLAGS: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_PROGRAM: Final = "import sys; sys.path += sys.argv[1:]; from server.media.decoder import main; main()"


class WorkerDiedError(Exception):
    """The process ended, or said what none of ours says, before it had answered."""


def decoder_command() -> tuple[str, ...]:
    """How the decoding program is started, without what an environment or a `site` adds to Python."""
    pillow = importlib.util.find_spec("PIL")
    if pillow is None or pillow.origin is None:
        raise ModuleNotFoundError("Pillow is not installed, which decodes images")
    folders = (str(Path(__file__).resolve().parents[2]), str(Path(pillow.origin).resolve().parents[1]))
    return (sys.executable, "-I", "-S", "-c", _PROGRAM, *folders)


class Worker:
    """A running process. `ask` is for one caller at a time; `end` is called in any case."""

    def __init__(self, command: Sequence[str]) -> None:
        self._channel, theirs = socket.socketpair()
        try:
            self._channel.setblocking(False)
            self._process: subprocess.Popen[bytes] = subprocess.Popen(  # in a thread it would hold the interpreter as long
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env={}, cwd="/", close_fds=True, start_new_session=True
            )
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    async def ask(self, question: dict[str, Any], file: int | None = None) -> tuple[dict[str, Any], int | None]:
        """The answer to `question`, and the file that came with it, which is the caller's to close.

        `file`: a descriptor to hand over; it stays the caller's. Raises `WorkerDiedError`; then, and where this is cancelled, the
        process is of no further use.
        """
        line = json.dumps(question).encode() + b"\n"
        try:
            if socket.send_fds(self._channel, [line], [] if file is None else [file]) != len(line):
                raise WorkerDiedError("it does not take questions")
            return await self._answer()
        except (OSError, ValueError) as error:
            raise WorkerDiedError(str(error)) from None

    async def end(self) -> None:
        """End the process, whatever it does, and wait until it is gone. May be called twice."""
        self._channel.close()
        self._process.kill()
        try:
            await asyncio.to_thread(self._process.wait)
        finally:
            self._process.wait()  # where this is cancelled; what is killed is gone in a moment

    @property
    def exit_code(self) -> int | None:
        """How the process ended, a signal as a negative number; None while it has not."""
        return self._process.returncode

    async def _answer(self) -> tuple[dict[str, Any], int | None]:
        received, files = b"", []
        try:
            while not received.endswith(b"\n"):
                await self._readable()
                with suppress(BlockingIOError):
                    part, new_files, _, _ = socket.recv_fds(self._channel, MAX_ANSWER_BYTES, MAX_FILES, _FLAGS)
                    files += new_files
                    received += part
                    if not part or len(received) > MAX_ANSWER_BYTES or len(files) > 1:
                        raise WorkerDiedError("it has ended" if not part else "its answer is none")
            answer = json.loads(received)
            if not isinstance(answer, dict):
                raise WorkerDiedError("its answer is none")
            return answer, files.pop() if files else None
        finally:
            for file in files:
                os.close(file)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._channel.fileno(), _wake, future)
        try:
            await future
        finally:
            loop.remove_reader(self._channel.fileno())


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def sound(answer: tuple[dict[str, Any], int | None]) -> dict[str, Any]:
    """An answer without a file. Raises `BadImageError` where it is an error."""
    what, file = answer
    if file is not None:
        os.close(file)
        raise WorkerDiedError("there is a file with its answer")
    if isinstance(error := what.get("error"), str):
        raise BadImageError(error)
    return what


def number_in(answer: dict[str, Any], name: str) -> int:
    """What `answer` says that `name` is, at least 1. Raises `WorkerDiedError`."""
    number = answer.get(name)
    if not isinstance(number, int) or not 0 < number < 1 << 48:
        raise WorkerDiedError(f"there is no `{name}` in its answer")
    return number


def hash_in(answer: dict[str, Any]) -> str:
    """The content hash in `answer`. Raises `WorkerDiedError`."""
    content_hash = answer.get("content_hash")
    if not isinstance(content_hash, str) or not _HASH.fullmatch(content_hash):
        raise WorkerDiedError("there is no hash in its answer")
    return content_hash
