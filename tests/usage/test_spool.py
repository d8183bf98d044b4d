"""Files in the spool's folder: who has them, what is read of them, what becomes of them."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from structlog.testing import capture_logs

from server.clock import ManualClock
from server.usage import segment as segment_module
from server.usage.ledger import Ledger
from server.usage.segment import line_of, read_lines, row_in
from server.usage.spool import Spool, sync_all
from tests.usage.conftest import FaultyStore, MemoryStore, a_row, kill

pytestmark = pytest.mark.usefixtures("loud")


@contextmanager
def full_disk(num_free_bytes: int = 0) -> Iterator[None]:
    """No file may grow beyond so many bytes, as the operating system has it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_free_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names(folder: Path, suffix: str = "") -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(suffix))


async def drained(spool: Spool) -> MemoryStore:
    """A store that has been given everything, dead processes' rows, too."""
    store = MemoryStore()
    ledger = Ledger(spool, store, ManualClock())
    await ledger.adopt()
    assert await ledger.drain()
    return store


def test_folder_and_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "var" / "spool")
    spool.append(a_row(1))
    [file] = spool.folder.iterdir()

    assert [0o700, 0o600] == [stat.S_IMODE(path.stat().st_mode) for path in (spool.folder, file)]


def test_a_row_is_in_the_file_when_append_returns(spool: Spool) -> None:
    spool.append(a_row(1))
    [file] = spool.folder.iterdir()

    assert line_of(a_row(1)) == file.read_bytes()
    assert 1 == spool.num_pending


async def test_a_deleted_file_is_followed_by_another_and_loses_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.append(a_row(1))
    [file] = spool.folder.iterdir()
    file.unlink()
    spool.folder.rmdir()
    with capture_logs() as logs:
        spool.append(a_row(2))

    assert ["spool_file_deleted"] == [line["event"] for line in logs]
    [other] = spool.folder.iterdir()
    assert [a_row(2)] == [row_in(line) for line in other.read_bytes().splitlines()]
    store = await drained(spool)
    assert [a_row(1).id, a_row(2).id] == sorted(store.rows)


async def test_a_drained_file_begins_anew(spool: Spool) -> None:
    for number in range(10):
        spool.append(a_row(number))
    store = await drained(spool)
    [file] = spool.folder.iterdir()

    assert [a_row(number) for number in range(10)] == list(store.rows.values())
    assert (0, 0) == (file.stat().st_size, spool.num_pending)
    spool.append(a_row(10))
    assert {"id-10"} == (await drained(spool)).rows.keys()


async def test_a_large_file_is_followed_by_another_and_deleted_when_drained(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_segment_bytes=1000)
    for number in range(50):
        spool.append(a_row(number))

    assert len(names(tmp_path)) > 10
    assert 50 == len((await drained(spool)).rows)
    assert 1 == len(names(tmp_path))
    spool.close()
    assert [] == names(tmp_path)


async def test_a_dead_process_is_inherited(tmp_path: Path) -> None:
    dead = Spool(tmp_path)
    dead.append(a_row(1))
    kill(dead)
    heir = Spool(tmp_path)
    heir.append(a_row(2))

    assert {"id-1", "id-2"} == (await drained(heir)).rows.keys()
    assert 1 == len(names(tmp_path))


async def test_a_living_process_is_left_alone(tmp_path: Path) -> None:
    one, other = Spool(tmp_path), Spool(tmp_path)
    one.append(a_row(1))
    other.append(a_row(2))

    assert {"id-2"} == (await drained(other)).rows.keys()
    assert {"id-1"} == (await drained(one)).rows.keys()


async def test_a_file_that_another_takes_before_it_is_locked_is_given_up(tmp_path: Path) -> None:
    lock, thieves = segment_module._locked, []

    def late_lock(fd: int) -> int | None:
        if not thieves:
            thieves.append(None)
            thief = Spool(tmp_path)  # starts between the file's creation and its lock
            thief.take_over(thief.adopt())
            thieves[0] = thief
        return lock(fd)

    with patch.object(segment_module, "_locked", late_lock):
        spool = Spool(tmp_path)
    spool.append(a_row(1))
    kill(spool)

    assert {"id-1"} == (await drained(Spool(tmp_path))).rows.keys()


@pytest.mark.parametrize(
    "garbled",
    [
        b"\n",
        b"\x00" * 5000,
        b"\xff\xfe\n",
        b"12345678 {}\n",
        line_of(a_row(9))[:-20],
        line_of(a_row(9)).replace(b'"id-9"', b'"id-8"'),
    ],
    ids=["empty", "zeros", "bytes", "checksum", "torn", "changed"],
)
@pytest.mark.parametrize("place", [0, 1, 3])
async def test_a_garbled_line_is_left_out_counted_and_set_aside(tmp_path: Path, garbled: bytes, place: int) -> None:
    lines = [line_of(a_row(number)) for number in range(3)]
    if place < 3 and not garbled.endswith(b"\n"):
        garbled += b"\n"
    lines.insert(place, garbled)
    (tmp_path / "dead.rows").write_bytes(b"".join(lines))
    spool = Spool(tmp_path)
    with capture_logs() as logged:
        store = await drained(spool)

    assert [a_row(number) for number in range(3)] == list(store.rows.values())
    assert (1, 0) == (spool.num_garbled, spool.num_pending)
    assert 1 == len([line for line in logged if line["event"] == "spool_lines_garbled"])
    assert ["dead.bad"] == names(tmp_path, ".bad")
    assert b"".join(lines) == (tmp_path / "dead.bad").read_bytes()


async def test_a_file_longer_than_a_chunk_with_a_line_longer_than_any(tmp_path: Path) -> None:
    lines = [line_of(a_row(number)) for number in range(3000)]
    (tmp_path / "dead.rows").write_bytes(b"".join([*lines[:1500], b"x" * 2_000_000 + b"\n", *lines[1500:]]))
    spool = Spool(tmp_path)
    store = await drained(spool)

    assert [a_row(number) for number in range(3000)] == list(store.rows.values())
    assert spool.num_garbled >= 1


@pytest.mark.parametrize("chunk_bytes", [len(line_of(a_row(39))), 777, 5000])
def test_lines_are_found_wherever_chunks_end(tmp_path: Path, chunk_bytes: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"".join(line_of(a_row(number)) for number in range(40)))
    fd = os.open(file, os.O_RDONLY)
    found, done, size = [], 0, file.stat().st_size
    with patch.object(segment_module, "CHUNK_BYTES", chunk_bytes):
        while done < size:
            lines = read_lines(fd, done, size, 7)
            assert 0 < lines.num_lines <= 7
            found += lines.rows
            done = lines.end_bytes
    os.close(fd)

    assert [a_row(number) for number in range(40)] == found


def test_every_torn_line_is_known_as_such() -> None:
    line = line_of(a_row(1)).rstrip(b"\n")

    assert a_row(1) == row_in(line)
    assert [None] * len(line) == [row_in(line[:length]) for length in range(len(line))]
    assert [None] * len(line) == [row_in(line[:at] + bytes([line[at] ^ 4]) + line[at + 1 :]) for at in range(len(line))]


def test_a_row_of_another_version_is_read() -> None:
    fields = {**msgspec.structs.asdict(a_row(1)), "a_new_field": 1}
    del fields["images"]
    data = msgspec.json.encode(fields)

    assert a_row(1) == row_in(b"%08x " % segment_module.zlib.crc32(data) + data)


@pytest.mark.parametrize("num_free_bytes", [0, 100, 700])
async def test_a_full_disk_is_waited_for_in_memory(spool: Spool, num_free_bytes: int) -> None:
    with capture_logs() as logged:
        with full_disk(num_free_bytes):
            for number in range(1200):
                spool.append(a_row(number))
            assert not spool.recover()
        assert 1200 == spool.num_pending
        assert spool.num_kept >= 1197
        while spool.recover():
            pass
        assert 0 == spool.num_kept
        kill(spool)
    heir = Spool(spool.folder)

    assert {f"id-{number}" for number in range(1200)} == (await drained(heir)).rows.keys()
    assert ["spool_away", "spool_back"] == [line["event"] for line in logged if line["event"].startswith("spool")]
    assert 1 == len(names(spool.folder, ".rows"))


async def test_rows_in_memory_go_to_the_database_without_the_disk(spool: Spool) -> None:
    with capture_logs() as logged:
        with full_disk():
            for number in range(1200):
                spool.append(a_row(number))
            stores = [await drained(spool)]
            for number in range(3):
                spool.append(a_row(1200 + number))
                stores.append(await drained(spool))
                assert 0 == len((await drained(spool)).rows)  # nothing is left to try the disk with
        assert 0 == spool.num_pending
        stores.append(await drained(spool))
        spool.append(a_row(1203))

    assert [1200, 1, 1, 1, 0] == [len(store.rows) for store in stores]
    assert (1, 0) == (spool.num_pending, spool.num_kept)
    assert ["spool_away", "spool_back"] == [line["event"] for line in logged]


def test_more_than_memory_holds_is_lost_and_said(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_kept_rows=10)
    with capture_logs() as logged, full_disk():
        for number in range(20):
            spool.append(a_row(number))

    assert (10, 10) == (spool.num_lost, spool.num_pending)
    assert [1, 2, 4, 8] == [line["rows"] for line in logged if line["event"] == "ledger_rows_lost"]


def test_a_folder_that_cannot_be_made_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with capture_logs() as logged:
        spool = Spool(tmp_path / "file" / "spool")
        spool.append(a_row(1))

    assert 1 == spool.num_kept
    assert ["spool_away"] == [line["event"] for line in logged]


def test_a_row_that_no_file_can_have_stops_nobody(spool: Spool) -> None:
    spool.append(a_row(1, request_id="\ud800"))
    spool.append(a_row(2))

    assert (1, 1) == (spool.num_lost, spool.num_pending)


async def test_only_what_waits_is_synced_and_once(spool: Spool) -> None:
    assert [] == spool.unsynced()
    spool.append(a_row(1))
    waiting = spool.unsynced()
    sync_all(waiting)

    assert 2 == len(waiting)  # the file and the folder
    assert [] == spool.unsynced()
    spool.append(a_row(2))
    await drained(spool)
    assert [] == spool.unsynced()


async def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    spool = Spool(tmp_path, max_segment_bytes=1000)
    store = FaultyStore(MemoryStore())
    ledger = Ledger(spool, store, ManualClock())
    for number in range(100):
        spool.append(a_row(number))
    sync_all(spool.unsynced())
    with full_disk():
        spool.append(a_row(101))
    assert await ledger.drain()
    ledger.close()

    assert before == len(os.listdir("/proc/self/fd"))
    assert [] == names(tmp_path)
