"""Files that are cut, changed or made to kill: each gets its answer, and takes nothing else with it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from server.errors import InternalError, MediaError, OverloadedError
from server.media import pool as pool_module
from server.media.pool import Bounds, DecodePool
from server.media.worker import Worker, WorkerDiedError
from server.payload import Payload
from tests.media.files import BOUNDS, FORMATS, payload, picture, program, read, running, saved, until, workers

FILE = saved(picture(), "PNG")
SMALL = Bounds(1 << 20, 1 << 20)
OPTIONS = {
    "PNG": [("RGB", {}), ("RGBA", {}), ("P", {"transparency": 1}), ("I;16", {}), ("1", {})],
    "JPEG": [("RGB", {}), ("L", {"progressive": True}), ("CMYK", {}), ("RGB", {"exif": b"Exif\x00\x00II*\x00\x08\x00\x00\x00\x00\x00\x00\x00"})],
    "WEBP": [("RGB", {}), ("RGBA", {"lossless": True}), ("RGB", {"exif": b"Exif\x00\x00II*\x00\x08\x00\x00\x00\x00\x00\x00\x00"})],
    "GIF": [("P", {}), ("L", {"transparency": 5}), ("1", {})],
}  # fmt: skip


def files(format: str) -> list[bytes]:
    """A file of each kind that the format has, and an animation."""
    single = [
        saved(picture("L").convert(mode) if mode in ("I;16", "CMYK") else picture(mode), format, **options)
        for mode, options in OPTIONS[format]
    ]
    if format == "JPEG":
        return single
    return [*single, saved(picture(), format, save_all=True, append_images=[picture().rotate(90), picture().rotate(180)])]


async def answer(pool: DecodePool, way: str, what: Payload, bounds: Bounds) -> Any:
    """What the pool says, or the error that it raises."""
    try:
        if way == "check":
            return await pool.check(what, tenant="a", scope=b"s", bounds=bounds)
        return await pool.pixels(what, tenant="a", bounds=bounds)
    except (MediaError, OverloadedError) as error:
        return error


async def outcome(pool: DecodePool, data: bytes) -> tuple[int, int, bytes] | None:
    """What was decoded, or None for a `MediaError`; to check and to decode agree."""
    checked = await answer(pool, "check", payload(data), SMALL)
    if isinstance(checked, MediaError):
        assert "; " in checked.message
        assert len(checked.message) < 250
        again = await answer(pool, "pixels", payload(data), SMALL)
        assert isinstance(again, MediaError)
        assert checked.message == again.message
        return None
    pixels = await pool.pixels(payload(data), tenant="a", bounds=SMALL)
    assert (checked.width, checked.height) == (pixels.width, pixels.height)
    assert checked.width * checked.height <= SMALL.max_pixels
    seen = pixels.data.tobytes()
    pixels.close()
    return checked.width, checked.height, seen


async def sweep_cuts(format: str, step: int) -> None:
    async with running() as pool:
        for file in files(format):
            whole = await outcome(pool, file)
            (worker,) = workers()
            ends = {await outcome(pool, file[:length]) for length in (*range(0, len(file), step), len(file) - 2, len(file) - 1)}
            assert whole is not None
            assert ends <= {whole, None}, "what is cut is refused, or nothing of the picture was lost"
            assert None in ends
            assert [worker] == workers(), "nothing of it ended the process"


async def sweep_changes(format: str, seed: int, num_changes: int) -> None:
    randomly = random.Random(f"{format} {seed}")
    num_refused = 0
    async with running() as pool:
        await outcome(pool, FILE)
        (worker,) = workers()
        for file in files(format):
            for _ in range(num_changes):
                changed = bytearray(file)
                for _ in range(randomly.choice([1, 1, 2, 8])):
                    at = randomly.randrange(min(len(file), randomly.choice([64, len(file)])))
                    changed[at] = randomly.choice([0, 255, changed[at] ^ 1 << randomly.randrange(8), randomly.randrange(256)])
                num_refused += await outcome(pool, bytes(changed)) is None
        assert [worker] == workers(), "nothing of it ended the process"
    assert num_refused > 0


@pytest.mark.parametrize("format", FORMATS)
async def test_a_file_that_is_cut_is_refused_or_whole(format: str) -> None:
    await sweep_cuts(format, 29)


@pytest.mark.parametrize("format", FORMATS)
async def test_a_file_that_is_changed_has_an_answer(format: str) -> None:
    await sweep_changes(format, seed=1, num_changes=20)


@pytest.mark.long
@pytest.mark.parametrize("format", FORMATS)
async def test_a_file_that_is_cut_anywhere_is_refused_or_whole(format: str) -> None:
    await sweep_cuts(format, 1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 7))
@pytest.mark.parametrize("format", FORMATS)
async def test_files_that_are_changed_have_answers(format: str, seed: int) -> None:
    await sweep_changes(format, seed, num_changes=400)


class Trap:
    """A decoding program in which the file that ends in `trap` runs into `line`; others are decoded."""

    def __init__(self, folder: Path, line: str) -> None:
        self.reached = folder / "reached"
        self.command = program(
            "true = decoder.decode",
            "def decode(data, max_pixels):",
            "    if data.endswith(b'trap'):",
            f"        open({str(self.reached)!r}, 'w').close()",
            f"        {line}",
            "    return true(data, max_pixels)",
            "decoder.decode = decode",
        )


FOREVER = "while True: time.sleep(0.01) if len(data) % 2 else None"
PAUSE = "__import__('signal').pause()"
TRAP = payload(FILE + b"trap")


async def ends(pool: DecodePool, way: str) -> str:
    """What is said of the trap."""
    error = await answer(pool, way, TRAP, BOUNDS)
    assert isinstance(error, MediaError)
    return error.message


async def is_well(pool: DecodePool) -> None:
    assert 23 == (await pool.check(payload(FILE), tenant="b", scope=os.urandom(8), bounds=BOUNDS)).width


@pytest.mark.parametrize(
    ("line", "way"),
    [
        ("os._exit(0)", "check"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "pixels"),
        ("raise SystemExit", "check"),
        ("os.close(0)", "pixels"),
    ],
)
async def test_a_file_that_ends_its_process_ends_nothing_else(tmp_path: Path, line: str, way: str) -> None:
    async with running(command=Trap(tmp_path, line).command) as pool:
        await is_well(pool)
        (before,) = workers()
        message = await ends(pool, way)
        await is_well(pool)

        assert "the image could not be decoded, its decoder broke off; save it anew with another program" == message
        assert [before] != workers()
        assert 1 == len(workers())


async def test_a_process_that_is_killed_takes_its_own_image_alone(tmp_path: Path) -> None:
    trap = Trap(tmp_path, FOREVER)
    async with running(2, command=trap.command) as pool:
        trapped = asyncio.ensure_future(ends(pool, "check"))
        await until(trap.reached.exists, "it is being decoded")
        (busy,) = workers()
        await is_well(pool)
        (other,) = set(workers()) - {busy}
        busy.kill()
        assert "its decoder broke off" in await trapped
        await is_well(pool)
        assert other in workers()


async def test_a_process_that_is_killed_while_idle_takes_nothing() -> None:
    async with running() as pool:
        await is_well(pool)
        (idle,) = workers()
        idle.send_signal(signal.SIGKILL)
        await until(lambda: idle.status() == "zombie", "it has ended")
        await is_well(pool)
        assert [idle] != workers()


@pytest.mark.parametrize("way", ["check", "pixels"])
async def test_what_takes_too_long_is_ended(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "PATIENCE", 60.0)  # whatever else the machine does
    async with running(command=Trap(tmp_path, "while True: pass").command, timeout_s=0.5) as pool:
        await is_well(pool)
        (slow,) = workers()
        message = await ends(pool, way)
        await is_well(pool)
        (worker,) = workers()

        assert "decoding the image took longer than `0.5` s; send a smaller or simpler one" == message
        assert slow != worker
        assert not slow.is_running()


@pytest.mark.parametrize("way", ["check", "pixels"])
async def test_what_gets_no_processor_is_not_the_images_fault(tmp_path: Path, way: str) -> None:
    async with running(command=Trap(tmp_path, PAUSE).command, timeout_s=0.3) as pool:
        await is_well(pool)
        (slow,) = workers()
        error = await answer(pool, way, TRAP, BOUNDS)
        assert isinstance(error, OverloadedError)
        assert "the machine is busy" in error.message
        await is_well(pool)
        (worker,) = workers()

        assert slow != worker
        assert not slow.is_running()


async def test_a_process_ends_itself_when_nobody_else_does(tmp_path: Path) -> None:
    worker = Worker(Trap(tmp_path, "while True: pass").command)
    try:
        limits = {"max_bytes": 1 << 20, "max_pixels": 1 << 20, "cpu_s": 30, "limit_s": 0.3}
        read_it = {"do": "read", "offset": 0, "num_bytes": TRAP.num_bytes, "is_base64": False, "key": None, **limits}
        await worker.ask(read_it, TRAP.file.fileno())
        with pytest.raises(WorkerDiedError):
            await worker.ask({"do": "size"})
    finally:
        await worker.end()
    assert -signal.SIGALRM == worker.exit_code


async def test_a_process_ends_with_the_gateway(tmp_path: Path) -> None:
    worker = Worker(Trap(tmp_path, "pass").command)
    await worker.ask({"do": "forget"})
    worker._channel.close()
    await until(lambda: not worker.is_alive, "it has ended")
    await worker.end()

    assert 0 == worker.exit_code


@pytest.mark.parametrize("way", ["check", "pixels"])
async def test_a_file_that_wants_too_much_memory_is_refused_and_the_process_lives(tmp_path: Path, way: str) -> None:
    async with running(command=Trap(tmp_path, "max_pixels = len(bytearray(1 << 33))").command) as pool:
        await is_well(pool)
        before = workers()
        message = await ends(pool, way)
        await is_well(pool)
        assert before == workers()

    assert "decoding the image takes more memory than one of its size may" in message


@pytest.mark.parametrize("said", [b"[]\n", b"\xff\n", b"[" * 5000 + b"\n", bytes(100_000)])
async def test_a_program_that_says_what_none_says_does_not_start(said: bytes) -> None:
    async with running(command=program(f"decoder._send = lambda channel, answer, file: channel.sendall({said!r})")) as pool:
        with pytest.raises(InternalError):
            await pool.check(TRAP, tenant="a", scope=b"s", bounds=BOUNDS)
        assert [] == workers()


PIXELS = "decoder._write = lambda image, true=decoder._write: "
SAYS = "decoder._send = lambda channel, answer, file, true=decoder._send: true(channel, {**answer, **{%s}} if len(answer) > 1 else answer, file)"


@pytest.mark.parametrize(
    ("way", "line"),
    [
        ("check", SAYS % "'width': -1"),
        ("check", SAYS % "'width': '23'"),
        ("check", SAYS % "'num_bytes': 1.5"),
        ("check", SAYS % "'content_hash': 'ab'"),
        ("check", SAYS % "'content_hash': None"),
        (
            "check",
            "decoder._send = lambda channel, answer, file, true=decoder._send: true(channel, answer, os.dup(1) if answer else None)",
        ),
        ("pixels", SAYS % "'mode': 'RGBA'"),
        ("pixels", SAYS % "'mode': ['RGB']"),
        ("pixels", SAYS % "'height': 1 << 40"),
        ("pixels", PIXELS + "None"),
        ("pixels", PIXELS + "os.memfd_create('pixels')"),
        (
            "pixels",
            PIXELS + "(plain := os.dup(decoder.tempfile.TemporaryFile().fileno()), os.write(plain, bytes(23 * 17 * 3)))[0]",
        ),
        ("pixels", PIXELS + "(unsealed := os.memfd_create('pixels'), os.write(unsealed, bytes(23 * 17 * 3)))[0]"),
    ],
)
async def test_what_a_process_says_is_not_believed(way: str, line: str) -> None:
    num_files = len(os.listdir("/proc/self/fd"))
    async with running(command=program(line)) as pool:
        assert "its decoder broke off" in await ends(pool, way)
        assert "its decoder broke off" in await ends(pool, way), "and a new one is asked"
    assert num_files == len(os.listdir("/proc/self/fd"))


async def test_a_program_that_is_not_there_is_a_fault_of_ours() -> None:
    async with running(command=("/nowhere/python",)) as pool:
        for _ in range(2):
            with pytest.raises(InternalError):
                await pool.check(TRAP, tenant="a", scope=b"s", bounds=BOUNDS)


async def test_the_next_image_is_right_after_all_that(tmp_path: Path) -> None:
    async with running(command=Trap(tmp_path, "os._exit(1)").command) as pool:
        for _ in range(3):
            await ends(pool, "pixels")
            pixels = await pool.pixels(payload(FILE), tenant="a", bounds=BOUNDS)
            assert read(FILE).tobytes() == pixels.data.tobytes()
