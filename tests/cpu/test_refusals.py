"""Engines that never start. How one dies is seen at the end of the session's own: `tests/services/engine_death.py`."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from server.engine.profiles import ProfileError, load_profile
from server.engine.vllm import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session"), pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"enable_chunked_prefill": True}, "enable_chunked_prefill: false"),
        ({"long_prefill_token_threshold": 256}, "long_prefill_token_threshold"),
        ({"max_num_seq": 1}, "`max_num_seq` is an argument that vLLM does not know; did you mean `max_num_seqs`"),
        ({"model": "/x"}, "`model` is set elsewhere"),
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
