"""Whose image is decoded next.

Role: what waits for the decoding processes. Tenants take turns, an image each, so that one's flood delays another's image by no
more than the images that are being decoded.
Must not: grow without bound. Everything here is synchronous.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from server.errors import RateLimitError

J = TypeVar("J")


class Turns(Generic[J]):
    """Jobs that wait, in each tenant's own order; at most `max_waiting` of each."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._jobs: OrderedDict[str, dict[J, None]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(jobs) for jobs in self._jobs.values())

    def join(self, tenant: str, job: J) -> None:
        """Let `job` wait. Raises `RateLimitError` where too many of this tenant's do."""
        num_waiting = len(self._jobs.get(tenant, ()))
        if num_waiting >= self._max_waiting:
            raise RateLimitError(
                f"`{num_waiting}` images of this tenant wait to be decoded already; send fewer at once, or try again later",
                reason="image_queue_full",
                retry_after_s=5,
            )
        self._jobs.setdefault(tenant, {})[job] = None

    def leave(self, tenant: str, job: J) -> None:
        """Forget `job`, if it still waits."""
        jobs = self._jobs.get(tenant, {})
        jobs.pop(job, None)
        if not jobs:
            self._jobs.pop(tenant, None)

    def take(self) -> J | None:
        """The job whose turn it is, which waits no more; None where none waits."""
        if not self._jobs:
            return None
        tenant, jobs = next(iter(self._jobs.items()))
        job = next(iter(jobs))
        self.leave(tenant, job)
        if tenant in self._jobs:
            self._jobs.move_to_end(tenant)
        return job
