"""The counts of one engine that several processes have heard parts of, made into one.

Role: for a gateway with several workers. vLLM tells each of a step's tokens to whoever asked for them, but its figures of that
step to one process only. Invariant: totals add up; what is of a moment is that of the newest step, of each engine behind the one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from server.engine.base import EngineStats, EngineStep


def together(parts: Sequence[EngineStats], *, is_idle: bool) -> EngineStats:
    """Of all processes. `is_idle`: none of them has anything with the engine, whatever the last step said.

    Parts without `steps` are engines of their own, each the whole of one process, and add up.
    """
    newest: dict[int, EngineStep] = {}
    for part in parts:
        for number, step in part.steps.items():
            if number not in newest or step.at_s > newest[number].at_s:
                newest[number] = step
    now = list(newest.values()) or [EngineStep(0.0, part.num_running, part.num_waiting, part.kv_cache_usage) for part in parts]
    if is_idle:
        now = []
    return EngineStats(
        num_running=sum(step.num_running for step in now),
        num_waiting=sum(step.num_waiting for step in now),
        kv_cache_usage=sum(step.kv_cache_usage for step in now) / len(now) if now else 0.0,
        num_preemptions=sum(part.num_preemptions for part in parts),
        num_prefix_queried_tokens=sum(part.num_prefix_queried_tokens for part in parts),
        num_prefix_hit_tokens=sum(part.num_prefix_hit_tokens for part in parts),
        num_drafts=sum(part.num_drafts for part in parts),
        num_draft_tokens=sum(part.num_draft_tokens for part in parts),
        accepted_per_position=[sum(each) for each in zip_longest(*(part.accepted_per_position for part in parts), fillvalue=0)],
        steps=newest,
    )
