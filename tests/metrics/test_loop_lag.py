"""The event loop's lag is what a sleep was too long by."""

from __future__ import annotations

import asyncio

import pytest

from server.clock import ManualClock
from server.metrics.loop_lag import LOOK_INTERVAL_S, LoopLag
from server.metrics.recorder import Recorder
from tests.metrics.test_recorder import Scrape


async def test_only_what_is_too_long_counts() -> None:
    clock, recorder = ManualClock(), Recorder()
    late = iter([0.0, 0.004, -0.001, 0.3])

    async def sleep(seconds: float) -> None:
        assert seconds == LOOK_INTERVAL_S
        try:
            clock.advance(seconds + next(late))
        except StopIteration:
            raise asyncio.CancelledError from None

    with pytest.raises(asyncio.CancelledError):
        await LoopLag(clock, recorder.lagged, sleep=sleep).run()

    scrape = Scrape(recorder)
    buckets = [scrape.value("event_loop_lag_seconds_bucket", {"le": le}) for le in ("0.001", "0.005", "0.25", "0.5")]
    assert [2, 3, 3, 4] == buckets
    assert pytest.approx(0.304) == scrape.value("event_loop_lag_seconds_sum")
