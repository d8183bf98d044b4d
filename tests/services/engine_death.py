"""The death of a real engine, seen from within its process. A start takes half a minute, so the session's own engine dies, at its end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from server.engine.base import EngineDelta, EngineRequest, Sampling
from server.engine.vllm import VllmEngine
from server.errors import EngineDeadError


async def check_death(engine: VllmEngine) -> None:
    """A killed core is noticed and told: who waits hears of it within seconds, nobody is served after, and closing ends."""
    death = asyncio.ensure_future(engine.wait_dead())
    generation = engine.generate(_endless("running"))
    await anext(generation)
    (core,) = engine._llm.engine_core.resources.engine_manager.processes
    os.kill(core.pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError):
        await _drain(generation)
    await asyncio.wait_for(death, 60)
    assert (True, 0) == (engine.dead, engine.num_unfinished)
    with pytest.raises(EngineDeadError):
        await anext(engine.generate(_endless("after")))
    await asyncio.wait_for(asyncio.gather(engine.close(), engine.close()), 15)
    await engine.close()


def _endless(request_id: str) -> EngineRequest:
    return EngineRequest(request_id, [1000, 2000, 3000], Sampling(4000, temperature=0.0, ignore_eos=True), "death")


async def _drain(generation: AsyncIterator[EngineDelta]) -> None:
    async for _ in generation:
        pass
