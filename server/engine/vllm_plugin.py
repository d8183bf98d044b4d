"""What vLLM loads into each of its processes through its plugin mechanism: a guard, and cures of two faults of its CPU build.

With speculative decoding on, vLLM 0.32's CPU kernels (1) compute the temperature and the limits of every drafted position into a
copy that is thrown away, so that any request with a temperature above 0 is sampled with whatever was in memory; (2) end the
engine, for everybody, at the first step in which a request with `top_k` has no drafts. Nothing is changed on other platforms.
Source: vllm/utils/cpu_triton_utils.py `_expand_kernel_impl`, vllm/v1/sample/ops/topk_topp_sampler.py `apply_top_k_only`.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from server.engine.vllm_guard import end_with_parent

GROUP = "vllm.general_plugins"
NAME = "k3_gateway"


def is_installed() -> bool:
    """Whether vLLM's processes will find this plugin: the gateway is installed as a package, not merely on the path."""
    return any(found.name == NAME for found in entry_points(group=GROUP))


def register() -> None:
    """Called by vLLM, in each of its processes before a model is loaded, and in the gateway's own."""
    end_with_parent()
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.v1.sample import rejection_sampler

    constrain = rejection_sampler.apply_sampling_constraints

    def constrain_some(logits: Any, cu_num_draft_tokens: Any, sampling_metadata: Any) -> Any:
        """`apply_sampling_constraints`; no drafts, no work."""
        return constrain(logits, cu_num_draft_tokens, sampling_metadata) if logits.shape[0] else logits

    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    rejection_sampler.apply_sampling_constraints = constrain_some


def expand_batch_to_tokens(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    """Each request's value once for each of its tokens: shape (batch_size,) -> (num_tokens,).

    `cu_num_tokens`, shape (batch_size,): tokens of the requests up to and including each. `replace_from` becomes `replace_to`.
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts.long(), output_size=num_tokens)
