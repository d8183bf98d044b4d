"""One file of the spool: lines of ledger rows, each with its checksum.

Role: the file format and the file's lock. A line is `crc32 json`: eight hexadecimal digits, a space, the row. Invariants: a
file is locked by the one process that writes or drains it, and a dead process holds no lock; `num_bytes` counts whole lines only.
Must not: decide when a file is read or deleted; `spool.py` does.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from server.usage.row import LedgerRow

SUFFIX: Final = ".rows"
SET_ASIDE: Final = ".bad"
CHUNK_BYTES: Final = 512 * 1024
PROBE_BYTES: Final = 4096

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(LedgerRow)


def line_of(row: LedgerRow) -> bytes:
    """The line of `row`."""
    data = _encoder.encode(row)
    return b"%08x %b\n" % (zlib.crc32(data), data)


def row_in(line: bytes) -> LedgerRow | None:
    """The row of a line without its end; None where that is torn or garbled."""
    try:
        if line[8:9] != b" " or int(line[:8], 16) != zlib.crc32(line[9:]):
            return None
        return _decoder.decode(line[9:])
    except ValueError:  # no checksum, or a row of another kind
        return None


@dataclass(slots=True, eq=False)
class Segment:
    """An open, locked file. `num_done_bytes`: the database has what is before; `num_synced_bytes`: the disk has it.

    `num_rows` are still to be drained. `num_bad`: lines that can't be read, or that the database refuses; such a file is not
    deleted, but set aside for people to look at.
    """

    path: Path
    fd: int
    num_bytes: int = 0
    num_done_bytes: int = 0
    num_synced_bytes: int = 0
    num_rows: int = 0
    num_bad: int = 0

    @classmethod
    def create(cls, folder: Path) -> Segment:
        """A new, empty one. Raises `OSError`."""
        while True:
            path = folder / f"{uuid4().hex}{SUFFIX}"
            fd = _locked(os.open(path, os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_RDWR, 0o600))
            if fd is not None:
                return cls(path, fd)
            # Another process saw it before it was locked, took it for an orphan, and has deleted it or will.

    @classmethod
    def adopt(cls, path: Path) -> Segment | None:
        """The file of a process that is dead; None where its process lives. Reads the whole file. Raises `OSError`."""
        try:
            fd = _locked(os.open(path, os.O_RDWR))
        except FileNotFoundError:
            return None
        if fd is None:
            return None
        segment = cls(path, fd)
        last = b""
        try:
            while chunk := os.pread(fd, CHUNK_BYTES, segment.num_bytes):
                segment.num_bytes += len(chunk)
                segment.num_rows += chunk.count(b"\n")
                last = chunk[-1:]
        except OSError:
            os.close(fd)
            raise
        segment.num_rows += last not in (b"", b"\n")  # torn
        segment.num_synced_bytes = segment.num_bytes
        return segment

    @property
    def is_drained(self) -> bool:
        """Whether the database has all of it."""
        return self.num_done_bytes == self.num_bytes

    @property
    def is_deleted(self) -> bool:
        """Whether somebody has deleted the file: what is written to it is gone with this process."""
        return os.fstat(self.fd).st_nlink == 0

    def write(self, line: bytes) -> None:
        """Add a line. Raises `OSError`; the file may have a part of the line then, and must not be written to again."""
        if os.write(self.fd, line) != len(line):
            raise OSError("the disk has taken only a part of the line")
        self.num_bytes += len(line)
        self.num_rows += 1

    def probe(self) -> None:
        """Find out whether the disk takes anything, for an empty segment. Raises `OSError`."""
        os.write(self.fd, bytes(PROBE_BYTES))
        os.ftruncate(self.fd, 0)

    def clear(self) -> None:
        """Begin anew: the database has everything. Raises `OSError`."""
        os.ftruncate(self.fd, 0)
        self.num_bytes = self.num_done_bytes = self.num_synced_bytes = 0

    def retire(self) -> None:
        """Delete the file, or set it aside where it has lines that went nowhere."""
        try:
            if self.num_bad:
                self.path.rename(self.path.with_suffix(SET_ASIDE))
            else:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self.fd)  # last: it gives up the lock


@dataclass(slots=True)
class Lines:
    """Rows that were read from a segment up to `end_bytes`; of its `num_lines`, those that are no rows were left out."""

    rows: list[LedgerRow] = field(default_factory=list)
    num_lines: int = 0
    end_bytes: int = 0


def read_lines(fd: int, start_bytes: int, end_bytes: int, most: int) -> Lines:
    """At most `most` lines of what is between two places of a file. Raises `OSError`. May run in a thread."""
    chunk = os.pread(fd, min(CHUNK_BYTES, end_bytes - start_bytes), start_bytes)
    if not chunk:
        return Lines(end_bytes=end_bytes)  # somebody has cut the file
    found = Lines()
    begin = 0
    while found.num_lines < most and begin < len(chunk):
        end = chunk.find(b"\n", begin)
        if end < 0:
            if begin and start_bytes + len(chunk) < end_bytes:
                break  # the line goes on: it is the first of the next chunk
            end = len(chunk)  # torn at the end of the file, or longer than any line of ours
        if row := row_in(chunk[begin:end]):
            found.rows.append(row)
        found.num_lines += 1
        begin = min(end + 1, len(chunk))
    found.end_bytes = start_bytes + begin
    return found


def _locked(fd: int) -> int | None:
    """`fd`, its file locked for as long as it is open; None, and closed, where another has the lock or has deleted the file."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink > 0:
            return fd
    except BlockingIOError:
        pass
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None
