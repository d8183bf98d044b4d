"""Between our requests and deltas and vLLM's.

Role: pure conversion for `vllm.py`. Imports vllm, so it is imported itself only once an engine is built.
Invariant: nothing is copied per token; vLLM hands over fresh lists and keeps none of them.
"""

from __future__ import annotations

from typing import Any

from vllm.inputs import tokens_input
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

from server.engine.base import EngineDelta, EngineFinish, EngineRequest, Speculation, TokenLogprob
from server.errors import EngineError

# `repetition`: vLLM's detector of endless repetition cut the answer short. We never switch it on, a profile could.
_FINISHES: dict[str, EngineFinish] = {"stop": "stop", "length": "length", "abort": "abort", "repetition": "length"}


def engine_input(request: EngineRequest) -> Any:
    """The prompt as vLLM's rendered input, which skips its tokeniser's thread."""
    token_ids = request.token_ids if isinstance(request.token_ids, list) else list(request.token_ids)
    return tokens_input(token_ids, cache_salt=request.cache_salt)


def sampling_params(request: EngineRequest) -> Any:
    """vLLM's sampling parameters of `request`. Raises vLLM's validation error."""
    sampling = request.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=dict(sampling.logit_bias) if sampling.logit_bias else None,
        logprobs=sampling.logprobs,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        max_tokens=sampling.max_tokens,
        structured_outputs=None if request.grammar is None else StructuredOutputsParams(structural_tag=request.grammar),
        # We decode token ids ourselves, and these parameters serve this one request.
        detokenize=False,
        skip_special_tokens=False,
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,
    )


def last_delta(output: Any, num_top: int | None, end_token_ids: tuple[int, ...]) -> EngineDelta:
    """The delta of a finished `RequestOutput`; `num_top` as in `Sampling.logprobs`.

    Raises `EngineError` where the engine gave up on the request.
    """
    completion = output.outputs[0]
    finish = _FINISHES.get(completion.finish_reason)
    if finish is None:
        raise EngineError("the engine failed on this request")
    stop = completion.stop_reason
    return EngineDelta(
        completion.token_ids,
        logprobs=None if num_top is None else token_logprobs(completion, num_top),
        finish_reason=finish,
        stop_reason=stop if isinstance(stop, int) and stop not in end_token_ids else None,
        num_cached_tokens=output.num_cached_tokens or 0,
        speculation=_speculation(completion.spec_decode_metrics),
    )


def token_logprobs(completion: Any, num_top: int) -> list[TokenLogprob]:
    """Log probabilities of a `CompletionOutput`, one entry per token, each with its `num_top` best alternatives."""
    return [_token_logprob(i, of, num_top) for i, of in zip(completion.token_ids, completion.logprobs, strict=True)]


def _token_logprob(token_id: int, candidates: Any, num_top: int) -> TokenLogprob:
    """`candidates`, token id -> vLLM's `Logprob`: the best ones, and the token itself where it is not among them.

    Which of the two is told by their number: a token's rank counts those that are equal to it, so a best one may have rank 2.
    """
    top = [(i, of.logprob) for i, of in candidates.items() if len(candidates) <= num_top or i != token_id]
    top.sort(key=lambda pair: -pair[1])
    return TokenLogprob(token_id, candidates[token_id].logprob, tuple(top))


def _speculation(metrics: Any) -> Speculation | None:
    """`metrics.histogram[n]`: number of drafts of which n tokens were accepted."""
    if metrics is None:
        return None
    num_accepted = sum(accepted * count for accepted, count in enumerate(metrics.histogram))
    return Speculation(sum(metrics.histogram), metrics.num_draft_tokens, num_accepted)
