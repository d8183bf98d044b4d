"""The engine's own counts, taken from vLLM's statistics as they pass.

Role: hangs on vLLM's statistics hook, which runs on the event loop after every engine step; metrics read the result when scraped.
Invariant: nothing raised here reaches vLLM: an exception in the hook would end its output task, and with it every request.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from server.engine.base import EngineStats, EngineStep

logger = logging.getLogger(__name__)


def recorder_class(stats: EngineStats, *, is_shared: bool = False) -> type:
    """A class for vLLM's `stat_loggers` that keeps `stats` up to date, over all engines of the process.

    `is_shared`: other processes hear of the same engines, so what was heard when is kept, too.
    """
    from vllm.v1.metrics.loggers import AggregateStatLoggerBase

    class Recorder(AggregateStatLoggerBase):  # type: ignore[misc]
        """One instance for all engines of the process; vLLM makes it, by keyword."""

        def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:
            self._last_steps: dict[int, Any] = {}

        def record(self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0) -> None:
            try:
                if iteration_stats is not None:
                    stats.num_preemptions += iteration_stats.num_preempted_reqs
                if scheduler_stats is not None:
                    add_step(stats, scheduler_stats, self._last_steps, engine_idx)
                    if is_shared:
                        stats.steps[engine_idx] = step_of(scheduler_stats, time.monotonic())
            except Exception:
                logger.exception("the engine's statistics can't be read; its figures in the metrics are incomplete")

        def log_engine_initialized(self) -> None:
            """Nothing to announce."""

    return Recorder


def step_of(step: Any, now_s: float) -> EngineStep:
    """What of one step's `SchedulerStats` is of that moment."""
    return EngineStep(now_s, step.num_running_reqs, step.num_waiting_reqs + step.num_skipped_waiting_reqs, step.kv_cache_usage)


def add_step(stats: EngineStats, step: Any, last_steps: dict[int, Any], engine_index: int) -> None:
    """Add one step's `SchedulerStats` of one engine to `stats`. `last_steps`, engine index -> its last step, is updated."""
    last_steps[engine_index] = step
    last = last_steps.values()
    stats.num_running = sum(of.num_running_reqs for of in last)
    stats.num_waiting = sum(of.num_waiting_reqs + of.num_skipped_waiting_reqs for of in last)
    stats.kv_cache_usage = sum(of.kv_cache_usage for of in last) / len(last_steps)
    stats.num_prefix_queried_tokens += step.prefix_cache_stats.queries
    stats.num_prefix_hit_tokens += step.prefix_cache_stats.hits
    if (drafts := step.spec_decoding_stats) is None:
        return
    stats.num_drafts += drafts.num_drafts
    stats.num_draft_tokens += drafts.num_draft_tokens
    accepted = stats.accepted_per_position
    accepted.extend([0] * (len(drafts.num_accepted_tokens_per_pos) - len(accepted)))
    for position, count in enumerate(drafts.num_accepted_tokens_per_pos):
        accepted[position] += count
