from __future__ import annotations

import asyncio

import pytest

from server.engine.vllm_start import _Handover


class Llm:
    num_shutdowns = 0

    def shutdown(self, timeout: float) -> None:
        self.num_shutdowns += 1


async def test_what_the_thread_gives_is_what_the_loop_takes() -> None:
    handover, llm = _Handover(), Llm()
    await asyncio.to_thread(handover.give, llm)
    await asyncio.wait_for(handover.ready.wait(), 5)
    taken = handover.take()
    handover.abandon()
    assert (llm, 0) == (taken, llm.num_shutdowns)


@pytest.mark.parametrize("given_first", [True, False])
async def test_an_engine_that_nobody_waits_for_is_shut_down_once(given_first: bool) -> None:
    handover, llm = _Handover(), Llm()
    if given_first:
        handover.give(llm)
    handover.abandon()
    if not given_first:
        handover.give(llm)
    handover.abandon()
    assert 1 == llm.num_shutdowns


async def test_an_error_that_nobody_waits_for_is_dropped() -> None:
    handover = _Handover()
    handover.abandon()
    handover.give(ValueError("no such model"))
    assert not handover.ready.is_set()
