"""Whose image is decoded next.

Role: what waits for the decoding processes. Tenants take turns, an image each, so that one's flood delays another's image by no
more than the images that are being decoded. What the engine waits for goes before the rest of its tenant's: whoever waits beside
it in the engine, waits for that tenant.
Must not: grow without bound. Everything here is synchronous.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from typing import Generic, TypeVar

from server.errors import RateLimitError

J = TypeVar("J")


class _Line(Generic[J]):
    """The jobs of one tenant."""

    __slots__ = ("others", "urgent")

    def __init__(self) -> None:
        self.urgent: dict[J, None] = {}
        self.others: dict[J, None] = {}

    def __len__(self) -> int:
        return len(self.urgent) + len(self.others)


class Turns(Generic[J]):
    """Jobs that wait, in each tenant's own order, the urgent ones first; at most `max_waiting` others of each.

    `max_at_once`: so many jobs of one tenant may be under way: what one sends can't take everything, however long it takes.
    """

    def __init__(self, max_waiting: int, max_at_once: int = sys.maxsize) -> None:
        self._max_waiting = max_waiting
        self._max_at_once = max_at_once
        self._under_way: Counter[str] = Counter()
        self._lines: OrderedDict[str, _Line[J]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def join(self, tenant: str, job: J, *, is_urgent: bool = False) -> None:
        """Let `job` wait. Raises `RateLimitError` where too many of this tenant's do that are not urgent."""
        line = self._lines.get(tenant) or _Line()
        num_waiting = len(line.others)
        if num_waiting >= self._max_waiting and not is_urgent:
            raise RateLimitError(
                f"`{num_waiting}` images of this tenant wait to be decoded already; send fewer at once, or try again later",
                reason="image_queue_full",
                retry_after_s=5,
            )
        (line.urgent if is_urgent else line.others)[job] = None
        self._lines.setdefault(tenant, line)

    def leave(self, tenant: str, job: J) -> None:
        """Forget `job`, if it still waits."""
        if (line := self._lines.get(tenant)) is None:
            return
        line.urgent.pop(job, None)
        line.others.pop(job, None)
        if not line:
            del self._lines[tenant]

    def take(self) -> J | None:
        """The job whose turn it is, under way from now on; None where none may be."""
        found = next((of for of in self._lines.items() if self._under_way.get(of[0], 0) < self._max_at_once), None)
        if found is None:
            return None
        tenant, line = found
        job = next(iter(line.urgent or line.others))
        self.leave(tenant, job)
        self._under_way[tenant] += 1
        if tenant in self._lines:
            self._lines.move_to_end(tenant)
        return job

    def clear(self) -> list[J]:
        """All jobs that wait, which wait no more."""
        jobs = [job for line in self._lines.values() for job in (*line.urgent, *line.others)]
        self._lines.clear()
        return jobs

    def end(self, tenant: str) -> None:
        """One of the tenant's jobs is under way no more."""
        self._under_way[tenant] -= 1
        if not self._under_way[tenant]:
            del self._under_way[tenant]
