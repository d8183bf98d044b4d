"""The counts of an engine, of which several processes have heard parts."""

from __future__ import annotations

from server.engine.base import EngineStats, EngineStep
from server.engine.together import together


def test_totals_add_up_and_the_moment_is_the_newest_of_each_engine() -> None:
    first = EngineStats(
        num_running=9,
        num_preemptions=1,
        num_prefix_queried_tokens=100,
        num_prefix_hit_tokens=10,
        num_drafts=2,
        num_draft_tokens=8,
        accepted_per_position=[2, 1],
        steps={0: EngineStep(5.0, 3, 1, 0.5), 1: EngineStep(7.0, 2, 0, 0.25)},
    )
    second = EngineStats(
        num_preemptions=2,
        num_prefix_queried_tokens=50,
        num_prefix_hit_tokens=5,
        num_drafts=1,
        num_draft_tokens=4,
        accepted_per_position=[1, 1, 1],
        steps={0: EngineStep(6.0, 4, 2, 0.75), 1: EngineStep(1.0, 8, 8, 1.0)},
    )

    whole = together([first, second], is_idle=False)
    assert (6, 2, 0.5) == (whole.num_running, whole.num_waiting, whole.kv_cache_usage)
    assert (3, 150, 15) == (whole.num_preemptions, whole.num_prefix_queried_tokens, whole.num_prefix_hit_tokens)
    assert (3, 12, [3, 2, 1]) == (whole.num_drafts, whole.num_draft_tokens, whole.accepted_per_position)
    assert whole == together([second, first], is_idle=False)


def test_nothing_runs_where_nobody_has_asked_for_anything() -> None:
    whole = together([EngineStats(num_drafts=1, steps={0: EngineStep(5.0, 3, 1, 0.5)}), EngineStats()], is_idle=True)

    assert (0, 0, 0.0, 1) == (whole.num_running, whole.num_waiting, whole.kv_cache_usage, whole.num_drafts)


def test_engines_of_their_own_add_up() -> None:
    whole = together([EngineStats(2, 1, 0.5), EngineStats(3, 0, 0.25)], is_idle=False)

    assert (5, 1, 0.375) == (whole.num_running, whole.num_waiting, whole.kv_cache_usage)
