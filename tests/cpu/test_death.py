"""An engine of its own that dies, and one that never starts."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
import warnings
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from server.engine.base import EngineDelta, EngineRequest, Sampling
from server.engine.profiles import ProfileError, load_profile
from server.engine.vllm import VllmEngine
from server.errors import EngineDeadError

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session"), pytest.mark.filterwarnings("ignore")]


def endless(request_id: str) -> EngineRequest:
    return EngineRequest(request_id, [1000, 2000, 3000], Sampling(4000, temperature=0.0, ignore_eos=True), "death")


async def drain(generation: AsyncIterator[EngineDelta]) -> None:
    async for _ in generation:
        pass


async def test_a_killed_engine_core_is_noticed_and_told(demo_model: Path) -> None:
    lines: list[str] = []
    engine = await VllmEngine.open(load_profile("cpu-demo", {"max_num_seqs": 4}), demo_model, progress=lines.append)
    assert lines[0].startswith("starting the engine")
    assert len(lines) > 3
    death = asyncio.ensure_future(engine.wait_dead())
    generation = engine.generate(endless("running"))
    await anext(generation)
    (core,) = engine._llm.engine_core.resources.engine_manager.processes
    os.kill(core.pid, signal.SIGKILL)
    began_s = time.monotonic()
    with pytest.raises(EngineDeadError):
        await drain(generation)
    await asyncio.wait_for(death, 5)
    assert time.monotonic() - began_s < 5
    assert (True, 0) == (engine.dead, engine.num_unfinished)
    with pytest.raises(EngineDeadError):
        await anext(engine.generate(endless("after")))
    await asyncio.wait_for(asyncio.gather(engine.close(), engine.close()), 15)
    await engine.close()
    gc.collect()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"enable_chunked_prefill": True}, "enable_chunked_prefill: false"),
        ({"long_prefill_token_threshold": 256}, "long_prefill_token_threshold"),
        ({"max_num_seq": 1}, "`max_num_seq`: is an argument that vLLM does not know; did you mean `max_num_seqs`"),
        ({"model": "/x"}, "engine.overrides.model: is set elsewhere"),
        ({"max_num_seqs": "many"}, "`max_num_seqs`: Input should be a valid integer, .*, not `many`"),
        ({"max_num_seqs": 0}, "`max_num_seqs`: Input should be greater than or equal to 1, not `0`"),
        ({"speculative_config": 4}, "vLLM does not take `cpu-demo` for this model"),
        ({"tensor_parallel_size": 99}, "attention heads .* tensor parallel size"),
    ],
)
async def test_a_profile_that_cannot_work_is_refused(demo_model: Path, overrides: dict[str, object], words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        await VllmEngine.open(load_profile("cpu-demo", overrides), demo_model)


async def test_what_vllm_says_of_a_value_reaches_the_caller(demo_model: Path) -> None:
    with warnings.catch_warnings(), pytest.raises(ValueError, match="max_model_len"):
        await VllmEngine.open(replace(load_profile("cpu-demo"), engine={"max_model_len": 10_000_000}), demo_model)
