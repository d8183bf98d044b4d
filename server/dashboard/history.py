"""The last quarter of an hour, a point every two seconds: so that a page that was just opened has something to show.

Invariant: bounded, whoever looks or not. Points are made once, when they are sampled, and are numbered from the gateway's start
on, so that a page asks only for those that it does not have.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from server.clock import Clock
from server.dashboard.points import Counts, Point, Sample, point_of

INTERVAL_S: Final = 2.0
KEPT_S: Final = 900.0
RATE_S: Final = 10.0
RATIO_S: Final = 60.0
log = structlog.get_logger(__name__)


class History:
    """Points of what `read` returns."""

    def __init__(self, read: Callable[[], Counts], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._samples: deque[Sample] = deque()
        self._points: deque[Point] = deque(maxlen=round(KEPT_S / INTERVAL_S))
        self._num_points = 0

    async def run(self, first: Callable[[], Awaitable[None]], then: Callable[[], Awaitable[None]]) -> None:
        """Sample until cancelled, after `first`; `then` comes after each.

        A fault here is logged: what only looks on must end nothing.
        """
        while True:
            try:
                await first()
                self.sample()
                await then()
            except Exception:
                log.exception("dashboard_sample_failed")
            await asyncio.sleep(INTERVAL_S)

    def sample(self) -> None:
        """Add the point of now."""
        now = Sample(self._clock.monotonic_s(), self._read())
        samples = self._samples
        while len(samples) > 1 and now.at_s - samples[0].at_s > RATIO_S + INTERVAL_S / 2:
            samples.popleft()
        earlier = samples[0] if samples else now
        newest = samples[-1] if samples else now  # after a standstill it may be older than the span of a rate
        shortly = next((sample for sample in samples if now.at_s - sample.at_s < RATE_S + INTERVAL_S / 2), newest)
        samples.append(now)
        self._points.append(point_of(self._clock.unix_ms() / 1000, now, shortly, earlier))
        self._num_points += 1

    def since(self, number: int) -> tuple[int, list[Point]]:
        """The points from `number` on, oldest first, as far as they are kept, and the number of the next one."""
        num_wanted = min(max(self._num_points - number, 0), len(self._points))
        first = len(self._points) - num_wanted
        return self._num_points, [self._points[index] for index in range(first, len(self._points))]
