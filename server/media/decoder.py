"""The program of a decoding process: files come in, what is known of them goes out.

Role: `python -c` starts it with a socket as its standard input; `worker.py` talks to it. A line of JSON and the descriptor of a
file ask, a line of JSON answers, one at a time. Imports only the standard library, Pillow and its neighbours that do so, too.
Invariant: a question takes as much memory and time as it says, or this process ends; so it does when the other end is gone.
Must not: be handed anything of the gateway: neither its environment, nor other descriptors than that of one file at a time. It
is not shut in beyond that: code that takes it over may do what the gateway's user may.

    {"do": "read", "offset", "num_bytes", "is_base64", "key", "max_bytes", "max_pixels", "cpu_s", "limit_s"} + file
                         {"content_hash", "num_bytes"}       the file is kept for the next question;
                                                             `key` may be null, and so is the hash then
    {"do": "size"}       {"width", "height"}                 of what was read; it is decoded, and both are forgotten
    {"do": "pixels"}     {"mode", "width", "height"} + file  as `size`, with the pixels
    {"do": "forget"}     {}
    any of them          {"error": text for the client}
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from server.media import bad_image
from server.media.bad_image import BadImageError
from server.media.base64_text import decoded
from server.media.picture import decode

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_LINE_BYTES: Final = 4096
HASH_BYTES: Final = 32
MAX_OPEN_FILES: Final = 32
NICENESS: Final = 10
"""Decoding gives way to the event loop and to the engine."""

SPARE_BYTES: Final = 64 * 1024 * 1024
BYTES_PER_PIXEL: Final = 32
"""Of memory while decoding: a WebP's three canvases and Pillow's copies, or the coefficients of a progressive JPEG."""

STRIP_BYTES: Final = 1024 * 1024


@dataclass(slots=True, frozen=True)
class _File:
    """An image file that was read, and how many pixels it may have."""

    data: bytes
    max_pixels: int


def main() -> None:
    """Answer until the other end is gone."""
    _bound_process()
    channel = socket.socket(fileno=0)
    held: list[_File] = []
    while (question := _receive(channel)) is not None:
        message, file = question
        if "limit_s" in message:
            # Each ends this process, even where the gateway can't any more; the first counts what it does, not what it waits for.
            signal.setitimer(signal.ITIMER_PROF, message["cpu_s"])
            signal.setitimer(signal.ITIMER_REAL, message["limit_s"])
        try:
            answer, pixels = _answer(message, file, held)
        except BadImageError as error:
            held.clear()
            answer, pixels = {"error": str(error)}, None
        except MemoryError:
            held.clear()
            answer, pixels = {"error": str(bad_image.too_much_memory())}, None
        finally:
            if file is not None:
                os.close(file)
        if not held:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            _send(channel, answer, pixels)
        except OSError:  # the other end is gone
            return


def _answer(message: dict[str, Any], file: int | None, held: list[_File]) -> tuple[dict[str, Any], int | None]:
    match message["do"]:
        case "read":
            assert file is not None
            data = _read(message, file)
            held[:] = [_File(data, message["max_pixels"])]
            return {"content_hash": _hash(data, message["key"]), "num_bytes": len(data)}, None
        case "size":
            image = _decode_held(held)
            return {"width": image.width, "height": image.height}, None
        case "pixels":
            image = _decode_held(held)
            return {"mode": image.mode, "width": image.width, "height": image.height}, _write(image)
        case _:
            held.clear()
            return {}, None


def _hash(data: bytes, key: str | None) -> str | None:
    return None if key is None else hashlib.blake2b(data, key=bytes.fromhex(key), digest_size=HASH_BYTES).hexdigest()


def _decode_held(held: list[_File]) -> Image:
    file = held.pop()
    return decode(file.data, file.max_pixels)


def _read(message: dict[str, Any], file: int) -> bytes:
    num_bytes, max_bytes = message["num_bytes"], message["max_bytes"]
    _bound_memory(SPARE_BYTES + 4 * num_bytes + BYTES_PER_PIXEL * message["max_pixels"])
    data = os.pread(file, num_bytes, message["offset"])
    if message["is_base64"]:
        data = decoded(data)
    if len(data) > max_bytes:
        raise bad_image.too_many_bytes(len(data), max_bytes)
    if not data:
        raise bad_image.empty()
    return data


def _write(image: Image) -> int:
    """A file of the picture's pixels, which can neither shrink nor change where the system has a way to say so."""
    if sys.platform == "linux":
        import fcntl

        file = os.memfd_create("pixels", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    try:
        width, height = image.size
        num_rows = max(1, STRIP_BYTES // (width * 4))
        for top in range(0, height, num_rows):
            strip = memoryview(image.crop((0, top, width, min(top + num_rows, height))).tobytes())
            while strip:
                strip = strip[os.write(file, strip) :]
        if sys.platform == "linux":
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    except (OSError, MemoryError):
        os.close(file)
        raise BadImageError("there is no memory for the image's pixels; try again later, or send a smaller one") from None
    return file


def _receive(channel: socket.socket) -> tuple[dict[str, Any], int | None] | None:
    """The next question, and the file that came with it; None when there will be none."""
    line, file = b"", None
    while not line.endswith(b"\n"):
        part, files, _, _ = socket.recv_fds(channel, MAX_LINE_BYTES, 1)
        if not part:
            return None
        line += part
        file = files[0] if files else file
    return json.loads(line), file


def _send(channel: socket.socket, answer: dict[str, Any], file: int | None) -> None:
    line = json.dumps(answer).encode() + b"\n"
    try:
        if file is None:
            channel.sendall(line)
        else:
            socket.send_fds(channel, [line], [file])
    finally:
        if file is not None:
            os.close(file)


def _bound_process() -> None:
    """What this process may do at most, whatever a file makes it do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's; the gateway ends this process
    os.nice(NICENESS)
    with suppress(OSError):  # this process has a session of its own, whose niceness is what counts where Linux groups by sessions
        Path("/proc/self/autogroup").write_text(str(NICENESS), encoding="ascii")
    for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, MAX_OPEN_FILES), (resource.RLIMIT_NPROC, 0)):
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))
    with suppress(OSError):  # the kernel should rather end this process than the gateway
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    gc.freeze()


def _bound_memory(num_more_bytes: int) -> None:
    """Let this process have so many bytes more than it has."""
    with suppress(OSError, ValueError):  # where there is no such file, or no such limit, time and the other limits are left
        num_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = num_pages * resource.getpagesize() + num_more_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


if __name__ == "__main__":
    main()
