"""Where ledger rows wait for the database: files of this machine.

Role: between the end of a request and `ledger.py`. A row is one `write` to a file before `append` returns, so it outlives this
process however that dies (`kill -9` too). What the database does not take soon is synced to the disk by `sync_all`, in a
thread a few times a second: a loss of power costs at most the rows since then. Each process writes and drains files of its own,
held by a lock; what a dead one has left is adopted. Rows leave after the database has them, so a crash in between sends them
again: the ledger keeps each id once.
Must not: raise into a request, or wait for a disk that syncs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from server.usage.row import LedgerRow
from server.usage.saying import say
from server.usage.segment import SUFFIX, Segment, line_of

MAX_SEGMENT_BYTES: Final = 32 * 1024 * 1024
MAX_KEPT_ROWS: Final = 100_000
MAX_BATCH_ROWS: Final = 500


@dataclass(slots=True, frozen=True)
class Batch:
    """Rows to be written to the database together, and where they came from: a segment up to `end_bytes`, or memory."""

    rows: list[LedgerRow]
    segment: Segment | None = None
    num_lines: int = 0
    end_bytes: int = 0


class Spool:
    """The files of this process in `folder`, which others may share.

    While the disk takes nothing, up to `max_kept_rows` are kept in memory; more are lost, and counted. For one event loop; only
    `adopt` may run in a thread.
    """

    def __init__(self, folder: Path, *, max_segment_bytes: int = MAX_SEGMENT_BYTES, max_kept_rows: int = MAX_KEPT_ROWS) -> None:
        self.folder = folder
        self.num_lost = 0
        self.num_garbled = 0
        self._max_segment_bytes = max_segment_bytes
        self._max_kept_rows = max_kept_rows
        self._active: Segment | None = None
        self._segments: list[Segment] = []  # oldest first, the active one among them
        self._kept: dict[str, LedgerRow] = {}  # by id, while the disk takes nothing
        self._is_failing = False
        try:
            self._open_segment()
        except OSError as error:
            say("error", "spool_away", folder=str(folder), error=str(error), kept_in_memory=max_kept_rows)
            self._disk_failed()

    @property
    def num_pending(self) -> int:
        """Rows that the database does not have yet."""
        return len(self._kept) + sum(segment.num_rows for segment in self._segments)

    @property
    def num_kept(self) -> int:
        """Those of them that are in memory only."""
        return len(self._kept)

    def append(self, row: LedgerRow) -> None:
        """Take a row. Never raises."""
        if not self._is_failing:
            try:
                self._write(row)
                return
            except OSError as error:
                self._disk_failed()
                say("error", "spool_away", folder=str(self.folder), error=str(error), kept_in_memory=self._max_kept_rows)
            except ValueError as error:  # text that no encoding has
                self._lose(f"row `{row.id}` can't be written: {error}")
                return
        if len(self._kept) < self._max_kept_rows:
            self._kept[row.id] = row
        else:
            self._lose("the disk takes nothing, and memory is full")

    def recover(self) -> bool:
        """Try to bring some rows from memory to the disk; True when there are more and the disk takes them."""
        if not self._is_failing:
            return False
        try:
            for row in list(islice(self._kept.values(), MAX_BATCH_ROWS)):
                self._write(row)
                del self._kept[row.id]
            if self._active is None:  # all rows have gone to the database meanwhile
                self._open_segment().probe()
        except OSError:
            self._disk_failed()
            return False
        if not self._kept:
            self._is_failing = False
            say("warning", "spool_back", folder=str(self.folder), lost_rows=self.num_lost)
        return self._is_failing

    def next_range(self) -> tuple[Segment, int] | None:
        """The oldest segment that is not drained, and how many bytes it has."""
        return next(((segment, segment.num_bytes) for segment in self._segments if not segment.is_drained), None)

    def kept(self) -> Batch | None:
        """Rows of the memory, which can go to the database without the disk."""
        return Batch(list(islice(self._kept.values(), MAX_BATCH_ROWS))) if self._kept else None

    def written(self, batch: Batch, refused: Sequence[LedgerRow] = ()) -> None:
        """The database has the batch, but those rows that it has `refused` for what they say."""
        segment = batch.segment
        if segment is None:
            for row in batch.rows:
                self._kept.pop(row.id, None)
            return
        num_garbled = batch.num_lines - len(batch.rows)
        if num_garbled:
            self.num_garbled += num_garbled
            say("error", "spool_lines_garbled", file=str(segment.path), lines=num_garbled, before_byte=batch.end_bytes)
        segment.num_bad += num_garbled + len(refused)
        segment.num_done_bytes = batch.end_bytes
        segment.num_rows = 0 if segment.is_drained else max(0, segment.num_rows - batch.num_lines)
        if segment.is_drained:
            self._clear(segment) if segment is self._active else self._retire(segment)

    def adopt(self) -> list[Segment]:
        """Files of dead processes, for `take_over`. Slow: reads them whole."""
        found: list[Segment] = []
        try:
            paths = sorted(self.folder.glob(f"*{SUFFIX}"), key=lambda path: path.name)
        except OSError:
            return found
        for path in paths:
            try:
                if segment := Segment.adopt(path):
                    found.append(segment)
            except OSError as error:
                say("error", "spool_file_unreadable", file=str(path), error=str(error))
        return found

    def take_over(self, segments: Sequence[Segment]) -> None:
        """Drain these, too."""
        for segment in segments:
            if segment.is_drained:
                self._retire(segment)
            else:
                self._segments.insert(0, segment)
        if num_rows := sum(segment.num_rows for segment in segments):
            say("info", "spool_adopted", folder=str(self.folder), rows=num_rows)

    def unsynced(self) -> list[int]:
        """Descriptors of what neither the database nor, perhaps, the disk has; for `sync_all`, which closes them."""
        found: list[int] = []
        with suppress(OSError):  # no descriptor is free: at the next turn, then
            for segment in self._segments:
                if not segment.is_drained and segment.num_synced_bytes < segment.num_bytes:
                    found.append(os.dup(segment.fd))
                    segment.num_synced_bytes = segment.num_bytes
            if found:
                found.append(os.open(self.folder, os.O_RDONLY))  # the names of new files
        return found

    def close(self) -> None:
        """Give everything up; what the database does not have stays for whoever comes next."""
        for segment in list(self._segments):
            if segment.is_drained:
                self._retire(segment)
            else:
                os.close(segment.fd)
        if self._kept:
            say("error", "ledger_rows_lost", rows=len(self._kept), reason="the spool's disk takes nothing")
        self._segments.clear()
        self._active = None

    def _write(self, row: LedgerRow) -> None:
        line = line_of(row)
        active = self._active
        if active is None or active.num_bytes >= self._max_segment_bytes:
            active = self._open_segment()
        elif active.is_deleted:  # what it has goes to the database yet, through its descriptor
            say("error", "spool_file_deleted", file=str(active.path), rows=active.num_rows, next="another is made")
            active = self._open_segment()
        active.write(line)

    def _open_segment(self) -> Segment:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = Segment.create(self.folder)
        self._seal()
        self._active = new
        self._segments.append(new)
        return new

    def _seal(self) -> None:
        """Nothing is added to the active segment any more."""
        segment, self._active = self._active, None
        if segment is not None and segment.is_drained:
            self._retire(segment)

    def _disk_failed(self) -> None:
        self._is_failing = True
        self._seal()  # it may end in a part of a line

    def _lose(self, reason: str) -> None:
        self.num_lost += 1
        if self.num_lost & (self.num_lost - 1) == 0:  # a line at 1, 2, 4, 8 … lost rows
            say("error", "ledger_rows_lost", rows=self.num_lost, reason=reason)

    def _clear(self, segment: Segment) -> None:
        """All of the active segment is in the database: it begins anew, unless it has something to be looked at."""
        if segment.num_bad:
            return
        try:
            segment.clear()
        except OSError as error:
            say("error", "spool_file_not_cleared", file=str(segment.path), error=str(error))

    def _retire(self, segment: Segment) -> None:
        if segment in self._segments:
            self._segments.remove(segment)
        try:
            segment.retire()
        except OSError as error:
            say("error", "spool_file_not_deleted", file=str(segment.path), error=str(error))


def sync_all(descriptors: Sequence[int]) -> None:
    """Have the disk keep what these files say. Takes as long as the disk does: for a thread."""
    for descriptor in descriptors:
        try:
            os.fsync(descriptor)
        except OSError as error:
            say("error", "spool_not_synced", error=str(error))
        finally:
            os.close(descriptor)
