"""Greedy generation on vLLM's CPU build, for the base model's answers and for the evaluation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

# A gigabyte for attention is plenty; one process is enough, and its log is not the subject.
_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def generate(model: Path, prompts: Sequence[list[int]], limits: Sequence[int], stop_ids: Sequence[int]) -> list[list[int]]:
    """Generated ids of each prompt, end token included. `limits`: most tokens of each answer.

    No grammar, temperature 0. A token of `stop_ids` ends an answer, besides the model's own end token.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(model), enforce_eager=True, dtype="bfloat16", max_model_len=2048, max_num_seqs=64, max_num_batched_tokens=4096,
        block_size=32, skip_tokenizer_init=True, disable_log_stats=True,
    )  # fmt: skip
    options = [
        SamplingParams(temperature=0, max_tokens=limit, stop_token_ids=list(stop_ids), detokenize=False) for limit in limits
    ]
    outputs = engine.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], options, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]
