"""The engine's part of a trace: one span for each engine request, from asking to the last token.

Role: around step 6 of a request. Where nothing is traced it is not there at all.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from server.engine.base import EngineDelta, EngineRequest, Take
from server.tracing.trace import AttributeValue, RequestTrace


class Asked(Protocol):
    """Whoever is asked; `server.engine.base.Engine` is that."""

    def generate(self, request: EngineRequest, take: Take | None = None) -> AsyncGenerator[EngineDelta, None]: ...


def traced(
    trace: RequestTrace | None, engine: Asked, request: EngineRequest, choice: int, take: Take | None = None
) -> AsyncGenerator[EngineDelta, None]:
    """The engine's deltas for `request`, which is for choice `choice`; noted in `trace`, of which the engine is told."""
    if trace is None:
        return engine.generate(request, take)
    if not trace.is_sampled:  # the engine must know that, too
        return engine.generate(replace(request, trace_headers=trace.headers(trace.span_id)), take)
    return _watched(trace, engine, request, choice, take)


async def _watched(
    trace: RequestTrace, engine: Asked, request: EngineRequest, choice: int, take: Take | None
) -> AsyncGenerator[EngineDelta, None]:
    earlier = [span for span in trace.spans if span.is_call and span.attributes["k3gw.choice"] == choice]
    for span in earlier:  # the gateway ended it itself, to ask again
        span.was_cut = False
    attributes: dict[str, AttributeValue] = {
        "k3gw.choice": choice,
        "k3gw.attempt": 1 + len(earlier),
        "k3gw.engine.request_id": request.request_id,
        "k3gw.engine.input_tokens": len(request.token_ids),
    }
    span = trace.begin("engine", attributes, is_call=True)
    num_tokens = 0

    def take_counted(token_ids: Sequence[int]) -> bool:
        nonlocal num_tokens
        is_taken = True  # also where that ends the answer
        try:
            is_taken = take is not None and take(token_ids)
        finally:
            num_tokens += len(token_ids) if is_taken else 0
        return is_taken

    request = replace(request, trace_headers=trace.headers(span.span_id))
    try:
        async with aclosing(engine.generate(request, take_counted if take else None)) as deltas:
            async for delta in deltas:
                if span.first_token_s is None:
                    span.first_token_s = trace.now_s()
                    span.attributes["k3gw.engine.cached_tokens"] = delta.num_cached_tokens
                num_tokens += len(delta.token_ids)
                if delta.finish_reason is not None:
                    span.ended_s = trace.now_s()
                    _note_end(span.attributes, delta)
                yield delta
    except BaseException as error:
        if span.ended_s is None:
            span.fail(error)
        raise
    finally:
        span.attributes["k3gw.engine.output_tokens"] = num_tokens
        if span.ended_s is None:
            span.ended_s = trace.now_s()


def _note_end(attributes: dict[str, AttributeValue], delta: EngineDelta) -> None:
    attributes["k3gw.engine.finish_reason"] = delta.finish_reason or ""
    if figures := delta.speculation:
        attributes["k3gw.engine.draft_tokens"] = figures.num_draft_tokens
        attributes["k3gw.engine.accepted_tokens"] = figures.num_accepted_tokens
