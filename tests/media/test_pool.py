"""Images are checked and decoded in other processes, each tenant in its turn, and nothing is left of it."""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import subprocess
import zlib
from pathlib import Path

import pytest
import uvloop
from PIL import Image

from server.errors import DrainingError, MediaError, RateLimitError
from server.media import pool as pool_module
from server.media.pool import Bounds, Checked, DecodePool
from server.media.worker import decoder_command
from server.payload import Payload, PayloadFile
from tests.media.files import (
    BOUNDS,
    FORMATS,
    payload,
    picture,
    png,
    proc,
    program,
    read,
    running,
    saved,
    text_payload,
    until,
    workers,
)

FILE = saved(picture(), "PNG")
LOGS = 'log = lambda what, path={path!r}: open(path, "a").write(what + "\\n")'
HOLDS = (
    "true = decoder.decode",
    "def decode(data, max_pixels):",
    "    log(data[-2:].decode('latin-1'))",
    "    while data[-2:] == b'#0' and not os.path.exists({gate!r}):",
    "        time.sleep(0.002)",
    "    return true(data, max_pixels)",
    "decoder.decode = decode",
)


class Gate:
    """A decoding program that says what it decodes, by the last two bytes of the file, and stays at `#0` until it may go on."""

    def __init__(self, folder: Path) -> None:
        self._log, self._gate = folder / "log", folder / "gate"
        self.command = program(LOGS.format(path=str(self._log)), *(line.format(gate=str(self._gate)) for line in HOLDS))

    @property
    def decoded(self) -> list[str]:
        return self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else []

    async def reached(self, what: str = "#0") -> None:
        await until(lambda: what in self.decoded, f"{what} is being decoded")

    def open(self) -> None:
        self._gate.touch()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def file(name: str) -> Payload:
    """A file of its own, which ends in `name`."""
    return payload(FILE + name.encode())


async def check(pool: DecodePool, what: Payload, *, tenant: str = "a", scope: bytes = b"s", bounds: Bounds = BOUNDS) -> Checked:
    return await pool.check(what, tenant=tenant, scope=scope, bounds=bounds)


def num_open() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


async def test_an_image_is_checked_and_then_decoded() -> None:
    async with running() as pool:
        for data in (saved(picture(), format) for format in FORMATS):
            checked = await check(pool, payload(data))
            pixels = await pool.pixels(payload(data, is_base64=True), tenant="a", bounds=BOUNDS)

            assert (23, 17, len(data)) == (checked.width, checked.height, checked.num_bytes)
            assert (23, 17, "RGB") == (pixels.width, pixels.height, pixels.mode)
            assert (17, 23, 3) == pixels.data.shape
            assert read(data).convert("RGB").tobytes() == pixels.data.tobytes()
            assert pixels.data.readonly
            pixels.close()
            pixels.close()


async def test_pixels_that_are_looked_at_outlive_their_closing() -> None:
    async with running() as pool:
        pixels = await pool.pixels(payload(FILE), tenant="a", bounds=BOUNDS)
    view = memoryview(pixels.data)
    pixels.close()

    assert read(FILE).tobytes() == view.tobytes()


async def test_the_hash_is_of_the_file_and_of_the_scope() -> None:
    async with running() as pool:
        ways = [
            payload(FILE),
            payload(FILE, is_base64=True),
            payload(FILE, before=b"another"),
            text_payload(base64.encodebytes(FILE)),
        ]
        same = {(await check(pool, way)).content_hash for way in ways}
        others = {(await check(pool, payload(FILE), scope=scope)).content_hash for scope in (b"", b"t", b"s" * 1000)}
        other_file = {(await check(pool, file("#1"))).content_hash}

    assert (1, 3) == (len(same), len(others))
    assert 5 == len(same | others | other_file)
    assert all(len(digest) == 64 and int(digest, 16) for digest in same | others | other_file)


async def test_what_was_checked_is_not_decoded_again_by_any_process(gate: Gate) -> None:
    gate.open()
    async with running(2, command=gate.command) as pool:
        await asyncio.gather(check(pool, file("#1")), check(pool, file("#2")))
        again = [await check(pool, file(name)) for name in ("#1", "#2", "#1", "#2")]
        in_other_scope = await check(pool, file("#1"), scope=b"t")
        with pytest.raises(MediaError) as raised:
            await check(pool, file("#1"), bounds=Bounds(BOUNDS.max_bytes, 390))

    assert ["#1", "#1", "#2"] == sorted(gate.decoded)
    assert {(23, 17)} == {(checked.width, checked.height) for checked in [*again, in_other_scope]}
    assert "`23` x `17` = `391` pixels, more than `390`" in raised.value.message


async def test_only_so_much_is_remembered(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    monkeypatch.setattr(pool_module, "MAX_REMEMBERED", 2)
    gate.open()
    async with running(command=gate.command) as pool:
        for name in ("#1", "#2", "#1", "#3", "#1", "#2"):
            await check(pool, file(name))

    assert ["#1", "#2", "#3", "#2"] == gate.decoded, "what was used longest ago is forgotten"


WRONG = [
    (payload(FILE), Bounds(len(FILE) - 1, 1000), f"has `{len(FILE)}` bytes, more than `{len(FILE) - 1}`; send a smaller one"),
    (payload(FILE, is_base64=True), Bounds(len(FILE) - 1, 1000), f"has `{len(FILE)}` bytes, more than `{len(FILE) - 1}`"),
    (payload(FILE), Bounds(len(FILE), 390), "`23` x `17` = `391` pixels, more than `390`; scale it down"),
    (payload(b""), BOUNDS, "the image is empty (`0` bytes); send"),
    (text_payload(b" \n"), BOUNDS, "the image is empty (`0` bytes); send"),
    (text_payload(b"AA-A"), BOUNDS, "the base64 text has `-`"),
    (payload(b"<html></html>"), BOUNDS, "it looks like `HTML`"),
    (payload(FILE[:-60]), BOUNDS, "the `PNG` file is cut off or corrupt"),
]


async def test_what_is_wrong_is_a_media_error_and_costs_no_process() -> None:
    async with running() as pool:
        for what, bounds, message in WRONG * 2:
            for ask in (check(pool, what, bounds=bounds), pool.pixels(what, tenant="a", bounds=bounds)):
                with pytest.raises(MediaError) as raised:
                    await ask
                assert message in raised.value.message
                assert raised.value.param is None
            assert 23 == (await check(pool, payload(FILE), scope=os.urandom(8))).width
        assert 1 == len(workers())


async def test_bounds_are_open_at_their_values() -> None:
    async with running() as pool:
        assert 23 == (await check(pool, payload(FILE), bounds=Bounds(len(FILE), 391))).width


async def test_processes_start_with_images_and_only_as_many_as_there_is_work_for(gate: Gate) -> None:
    async with running(3, command=gate.command) as pool:
        await asyncio.sleep(0)
        assert [] == workers()
        for number in range(1, 6):
            await check(pool, file(f"#{number}"))
        assert 1 == len(workers())
        held = asyncio.ensure_future(check(pool, file("#0")))
        await gate.reached()
        await check(pool, file("#6"))
        assert 2 == len(workers())
        gate.open()
        await held


async def test_one_tenant_never_has_all_processes(gate: Gate) -> None:
    async with running(2, command=gate.command) as pool, asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(check(pool, file("#0" if number == 0 else chr(65 + number))))
        await gate.reached()
        await check(pool, file("#6"), tenant="b")
        assert 4 == pool.num_waiting
        gate.open()


async def test_a_flood_of_one_tenant_delays_another_by_no_more_than_what_is_under_way(gate: Gate) -> None:
    async with running(1, command=gate.command) as pool, asyncio.TaskGroup() as tasks:
        tasks.create_task(check(pool, file("#0")))
        await gate.reached()
        for number in range(20):
            tasks.create_task(check(pool, file(chr(65 + number) * 2)))
        await asyncio.sleep(0)
        tasks.create_task(check(pool, file("#9"), tenant="b"))
        await asyncio.sleep(0)
        assert 21 == pool.num_waiting
        gate.open()

    assert gate.decoded.index("#9") <= 2, gate.decoded


async def test_a_tenant_may_have_only_so_many_waiting(gate: Gate) -> None:
    async with running(command=gate.command) as pool:
        waiting = [asyncio.ensure_future(check(pool, file("#0")))]
        await gate.reached()
        waiting += [asyncio.ensure_future(check(pool, file("#1"))) for _ in range(pool_module.MAX_WAITING_PER_TENANT)]
        await asyncio.sleep(0)
        with pytest.raises(RateLimitError):
            await check(pool, file("#2"))
        waiting.append(asyncio.ensure_future(check(pool, file("#3"), tenant="b")))
        gate.open()
        await asyncio.gather(*waiting)

    assert ["#0", "#1", "#3"] == sorted(gate.decoded)


async def test_who_leaves_while_waiting_costs_nothing(gate: Gate) -> None:
    async with running(command=gate.command) as pool:
        held = asyncio.ensure_future(check(pool, file("#0")))
        await gate.reached()
        for _ in range(1000):
            leaver = asyncio.ensure_future(check(pool, file("#1")))
            await asyncio.sleep(0)
            leaver.cancel()
            await asyncio.wait([leaver])
        assert 0 == pool.num_waiting
        gate.open()
        await held

    assert ["#0"] == gate.decoded


async def test_who_leaves_while_a_process_starts_leaves_it_to_the_next() -> None:
    async with running() as pool:
        what = file("#1")
        leaver = asyncio.ensure_future(check(pool, what))
        await until(lambda: pool.num_waiting == 0 and len(workers()) == 1, "a process starts for it")
        starting = workers()
        leaver.cancel()
        await asyncio.wait([leaver])
        what.file.close()
        await check(pool, file("#2"))
        assert starting == workers()


async def test_what_the_engine_waits_for_is_decoded_before_what_is_to_be_checked(
    monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    monkeypatch.setattr(pool_module, "MAX_WAITING_PER_TENANT", 3)
    async with running(command=gate.command) as pool, asyncio.TaskGroup() as tasks:
        tasks.create_task(check(pool, file("#0")))
        await gate.reached()
        for number in range(1, 4):
            tasks.create_task(check(pool, file(f"#{number}")))
        await asyncio.sleep(0)
        wanted = [tasks.create_task(pool.pixels(file(name), tenant="a", bounds=BOUNDS)) for name in ("#8", "#9")]
        await asyncio.sleep(0)
        assert 5 == pool.num_waiting
        gate.open()
        for task in wanted:
            (await task).close()

    assert ["#0", "#8", "#9", "#1", "#2", "#3"] == gate.decoded


async def test_who_leaves_while_being_decoded_leaves_a_process_that_works(gate: Gate) -> None:
    async with running(command=gate.command) as pool:
        for ask in (check(pool, file("#0")), pool.pixels(file("#0"), tenant="a", bounds=BOUNDS)):
            leaver = asyncio.ensure_future(ask)
            await until(lambda: len(gate.decoded) > 0, "it is being decoded")
            (worker,) = workers()
            leaver.cancel()
            await asyncio.wait([leaver])
            next_one = asyncio.ensure_future(check(pool, file("#1"), scope=os.urandom(8)))
            await asyncio.sleep(0)
            gate.open()
            await next_one
            assert [worker] == workers()
        assert "memfd:pixels" not in proc("self/maps")


async def test_pixels_that_come_as_their_caller_leaves_are_given_back() -> None:
    async with running() as pool:
        await check(pool, payload(FILE))
        for delay in range(40):
            caller = asyncio.ensure_future(pool.pixels(payload(FILE), tenant="a", bounds=BOUNDS))
            for _ in range(delay):
                await asyncio.sleep(0.0001)
            caller.cancel()
            await asyncio.wait([caller])
            if not caller.cancelled():
                caller.result().close()
        await check(pool, file("#1"))
        assert "memfd:pixels" not in proc("self/maps")
        assert 1 == len(workers())


async def test_nothing_is_left_at_the_end(gate: Gate) -> None:
    before = num_open()
    async with running(2, command=gate.command) as pool:
        asks = [
            asyncio.ensure_future(check(pool, file("#0"), tenant="ab"[number % 2], scope=bytes([number]))) for number in range(5)
        ]
        await until(lambda: len(gate.decoded) == 2, "both processes are busy")
        processes = workers()
        assert 2 == len(processes)
    await asyncio.wait(asks)
    ends = [type(ask.exception()) for ask in asks]
    with pytest.raises(DrainingError):
        await check(pool, payload(FILE))
    del asks
    await asyncio.sleep(0)

    assert [DrainingError] * 5 == ends
    assert not any(process.is_running() for process in processes)
    assert [] == workers()
    assert before == num_open()


async def test_a_process_has_nothing_of_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K3GW_SECRET", "a secret")
    inheritable = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    try:
        async with running() as pool:
            await check(pool, payload(FILE))
            (worker,) = workers()
            files = sorted(os.listdir(f"/proc/{worker.pid}/fd"))
            limits = proc(f"{worker.pid}/limits")

            assert {} == worker.environ()
            assert "/" == worker.cwd()
            assert ["0", "1", "2"] == files
            assert min(os.nice(0) + 10, 19) == worker.nice()
            assert "1000" == proc(f"{worker.pid}/oom_score_adj").strip()
            assert any(line.split()[:5] == ["Max", "core", "file", "size", "0"] for line in limits.splitlines())
            assert worker.pid == os.getsid(worker.pid), "a terminal's Ctrl-C is not for it"
    finally:
        os.close(inheritable)


def test_the_program_imports_nothing_of_the_gateway_but_what_decodes() -> None:
    command = decoder_command()
    code = "import sys; sys.path[:0] = sys.argv[1:]; import server.media.decoder; print(*sys.modules)"
    done = subprocess.run((*command[:4], code, *command[5:]), env={}, cwd="/", capture_output=True, text=True, check=True)

    assert {
        "server", "server.media", "server.media.decoder", "server.media.picture", "server.media.bad_image",
        "server.media.file_kind", "server.media.base64_text",
    } == {name for name in done.stdout.split() if name.startswith("server")}  # fmt: skip
    assert not {"asyncio", "structlog", "site", "PIL.TiffImagePlugin", "numpy"} & set(done.stdout.split())


def bomb() -> bytes:
    """A PNG of 50,000 x 50,000 pixels in 100 kB."""
    pack, rows = zlib.compressobj(9), bytes(1_000_000)
    data = b"".join(pack.compress(rows) for _ in range(100)) + pack.flush()
    file = png(50_000, 50_000, 8, 6, b"")
    return file[:33] + len(data).to_bytes(4, "big") + b"IDAT" + data + zlib.crc32(b"IDAT" + data).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (bomb(), "`50000` x `50000` = `2500000000` pixels, more than `50000000`"),
        (b"RIFF\x16\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x10\x00\x00\x00\xff\x3f\x00\xff\x3f\x00", "`16384` x `16384`"),
        (b"GIF89a" + b"\xff" * 4 + bytes(3), "`65535` x `65535`"),
        (
            b"GIF89a\x01\x00\x01\x00\x00\x00\x00!\xf9\x04\x0c\x00\x00\x00\x00,\x00\x00\x00\x00\xff\xff\xff\xff\x00\x02\x02L\x01\x00;",
            "more than `50000000` pixels",
        ),
    ],
)
async def test_bombs_are_refused_before_they_take_time_or_memory(data: bytes, what: str) -> None:
    assert 110_000 > len(data)
    async with running() as pool:
        await check(pool, payload(FILE))
        (worker,) = workers()
        before_s = sum(worker.cpu_times()[:2])
        for ask in (check(pool, payload(data)), pool.pixels(payload(data, is_base64=True), tenant="a", bounds=BOUNDS)):
            with pytest.raises(MediaError) as raised:
                await ask
            assert what in raised.value.message
        status = proc(f"{worker.pid}/status")
        peak_kb = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])

        assert peak_kb < 64 * 1024
        assert sum(worker.cpu_times()[:2]) - before_s < 0.5
        assert [worker] == workers()


async def test_an_image_as_large_as_may_be_has_memory_enough() -> None:
    side = 1200
    noise = Image.effect_noise((side, side), 90)
    turned = Image.Exif()
    turned[0x0112] = 6
    rgba = Image.merge("RGBA", (noise,) * 4)
    files = [
        saved(rgba, "PNG", compress_level=1, exif=turned),
        saved(rgba.convert("RGB"), "JPEG", progressive=True, exif=turned),
        saved(rgba, "WEBP", method=0, exif=turned),
        saved(noise, "GIF", transparency=3),
        saved(noise.convert("I;16"), "PNG", compress_level=1),
    ]
    async with running() as pool:
        for data in files:
            pixels = await pool.pixels(payload(data), tenant="a", bounds=Bounds(1 << 25, side * side))
            assert (side, side) == (pixels.width, pixels.height)
            pixels.close()
        (worker,) = workers()
        assert worker.memory_info().rss < 48 * 1024 * 1024, "what was decoded is given back"


def test_it_works_on_both_event_loops() -> None:
    async def main() -> tuple[int, bytes]:
        async with running(2) as pool:
            checked = await check(pool, payload(FILE))
            pixels = await pool.pixels(payload(FILE), tenant="a", bounds=BOUNDS)
            return checked.width, pixels.data.tobytes()

    assert (23, read(FILE).tobytes()) == asyncio.run(main()) == uvloop.run(main())


async def test_a_payload_that_was_closed_is_nobodys_image_to_blame() -> None:
    closed = PayloadFile()
    closed.append(FILE)
    what = Payload(closed, 0, len(FILE))
    closed.close()
    async with running() as pool:
        with pytest.raises(Exception, match="the gateway failed on this request"):
            await check(pool, what)
        assert 23 == (await check(pool, payload(FILE))).width
