from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from server.engine.base import EngineStats
from server.engine.vllm_stats import add_step


def step(
    running: int = 0, waiting: int = 0, skipped: int = 0, kv: float = 0.0, prefix: tuple[int, int] = (0, 0), spec: Any = None
) -> Any:
    """As vLLM's `SchedulerStats`; `spec`: drafts, draft tokens, accepted per position."""
    drafts = spec and SimpleNamespace(num_drafts=spec[0], num_draft_tokens=spec[1], num_accepted_tokens_per_pos=spec[2])
    return SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_skipped_waiting_reqs=skipped,
        kv_cache_usage=kv,
        prefix_cache_stats=SimpleNamespace(queries=prefix[0], hits=prefix[1]),
        spec_decoding_stats=drafts or None,
    )


def after(*steps: tuple[int, Any]) -> EngineStats:
    stats, last_steps = EngineStats(), dict[int, Any]()
    for engine_index, of in steps:
        add_step(stats, of, last_steps, engine_index)
    return stats


def test_gauges_are_those_of_the_last_step() -> None:
    stats = after((0, step(running=3, waiting=2, skipped=1, kv=0.5)), (0, step(running=1, kv=0.25)))
    assert (1, 0, 0.25) == (stats.num_running, stats.num_waiting, stats.kv_cache_usage)


def test_waiting_counts_the_deferred_too() -> None:
    assert 3 == after((0, step(waiting=2, skipped=1))).num_waiting


def test_several_engines_add_up_and_share_their_memory_usage() -> None:
    stats = after((0, step(running=3, kv=0.5)), (1, step(running=4, kv=0.1)), (0, step(running=1, kv=0.3)))
    assert (5, 0.2) == (stats.num_running, stats.kv_cache_usage)


def test_counts_are_totals() -> None:
    stats = after((0, step(prefix=(100, 60))), (1, step(prefix=(10, 0))), (0, step()))
    assert (110, 60) == (stats.num_prefix_queried_tokens, stats.num_prefix_hit_tokens)


def test_accepted_tokens_are_counted_by_position() -> None:
    stats = after((0, step(spec=(2, 8, [2, 1, 0, 0]))), (0, step()), (0, step(spec=(1, 3, [1, 1, 1, 0]))))
    assert (3, 11, [3, 2, 1, 0]) == (stats.num_drafts, stats.num_draft_tokens, stats.accepted_per_position)
