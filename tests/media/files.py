"""Image files for tests, and decoding pools to give them to."""

from __future__ import annotations

import asyncio
import base64
import io
import struct
import warnings
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from PIL import Image

from server.media.pool import Bounds, DecodePool
from server.media.worker import decoder_command
from server.payload import Payload, PayloadFile

BOUNDS = Bounds(max_bytes=32 * 1024 * 1024, max_pixels=50_000_000)
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")


def picture(mode: str = "RGB", size: tuple[int, int] = (23, 17)) -> Image.Image:
    """A picture in which no two neighbouring pixels are alike, and which looks different in every orientation."""
    width, height = size
    across = Image.linear_gradient("L").rotate(90).resize(size)
    down = Image.linear_gradient("L").resize(size)
    mixed = Image.radial_gradient("L").resize((width * 2, height * 2)).crop((0, 0, width, height))
    return Image.merge("RGBA", (across, down, mixed, down)).convert(mode)


def saved(image: Image.Image, format: str, **options: Any) -> bytes:
    """The file of a picture."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def read(file: bytes) -> Image.Image:
    """The picture in a file, as plain Pillow reads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of metadata that is broken
        image = Image.open(io.BytesIO(file))
        image.load()
    return image


def png(width: int, height: int, depth: int, colour: int, pixels: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG written by hand: `pixels` as the standard filters them, `chunks` before them."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(pixels, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


def payload(file: bytes, *, is_base64: bool = False, before: bytes = b"") -> Payload:
    """`file` as the gateway keeps it, behind the bytes of another."""
    stored, data = PayloadFile(), base64.b64encode(file) if is_base64 else file
    stored.append(before + data)
    return Payload(stored, len(before), len(data), is_base64)


def text_payload(text: bytes) -> Payload:
    """The text of base64, right or wrong."""
    stored = PayloadFile()
    stored.append(text)
    return Payload(stored, 0, len(text), is_base64=True)


@asynccontextmanager
async def running(
    num_workers: int = 1, timeout_s: float = 20.0, command: Sequence[str] | None = None
) -> AsyncIterator[DecodePool]:
    """A pool that is served meanwhile."""
    pool = DecodePool(num_workers=num_workers, timeout_s=timeout_s, command=command)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(pool.run())
        try:
            yield pool
        finally:
            serving.cancel()


def program(*lines: str) -> tuple[str, ...]:
    """The command of a decoding program in which `lines` have changed something; `decoder` is its module."""
    command = decoder_command()
    code = ("import os, signal, sys, time", "sys.path[:0] = sys.argv[1:]", "from server.media import decoder", *lines)
    return (*command[:4], "\n".join((*code, "decoder.main()")), *command[5:])


def workers() -> list[psutil.Process]:
    """The decoding processes that run."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it ends meanwhile
            if child.cmdline()[1:4] == ["-I", "-S", "-c"]:
                found.append(child)
    return found


def proc(name: str) -> str:
    """What the kernel says of a process."""
    return Path(f"/proc/{name}").read_text(encoding="ascii")


async def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for another process."""
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.002)
    assert is_so(), what
