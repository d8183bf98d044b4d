"""The figures of a point: what they are of, and what is left open."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.dashboard.points import COLUMNS, Counts, Distribution, Figure, Sample, point_of

BOUNDS = (0.1, 0.5, 1.0, 5.0)


def distribution(values: list[float]) -> Distribution:
    counts = [0] * (len(BOUNDS) + 1)
    for value in values:
        counts[bisect_left(BOUNDS, value)] += 1
    return Distribution(BOUNDS, tuple(counts), sum(values))


def figures(now: Counts, shortly: Counts | None = None, earlier: Counts | None = None, span_s: float = 10.0) -> dict[str, Figure]:
    """By name. `earlier` is as `shortly` where it is not given."""
    before = shortly or Counts()
    point = point_of(1_000.0, Sample(100.0, now), Sample(100.0 - span_s, before), Sample(40.0, earlier or before))
    return dict(zip(COLUMNS, point, strict=True))


def test_what_nothing_is_known_of_is_left_open_and_zero_is_zero() -> None:
    idle = figures(Counts())
    unknown = {name for name, value in idle.items() if value is None}

    assert unknown == {
        "kv_cache_usage", "cache_hit_ratio", "draft_acceptance", "tokens_per_step", "decode_tokens_per_s", "ttft_p50_s",
        "ttft_p90_s", "token_gap_p50_s", "token_gap_p99_s", "overhead_p50_s", "overhead_p90_s", "loop_lag_p50_s", "loop_lag_p99_s",
    }  # fmt: skip
    assert {0, 1_000.0} == {value for value in idle.values() if value is not None}
    missed = figures(Counts(num_prefix_queried_tokens=50, num_drafts=10, num_draft_tokens=70, kv_cache_usage=0.0))
    assert (0, 0, 1, 0) == tuple(
        missed[name] for name in ("cache_hit_ratio", "draft_acceptance", "tokens_per_step", "kv_cache_usage")
    )


def test_the_first_point_has_no_rates() -> None:
    now = Sample(5.0, Counts(num_output_tokens=100))
    first = dict(zip(COLUMNS, point_of(0.0, now, now, now), strict=True))

    assert {None} == {value for name, value in first.items() if name.endswith("_per_s")}


def test_rates_are_of_the_seconds_between() -> None:
    found = figures(
        Counts(
            num_input_tokens=1500,
            num_output_tokens=740,
            requests={
                "finished": 40,
                "limited": 6,
                "over_budget": 3,
                "rejected": 1,
                "invalid": 5,
                "cancelled": 7,
                "timeout": 2,
                "error": 1,
            },
            images={"loaded": 9, "refused": 2, "failed": 3},
        ),
        Counts(num_input_tokens=500, num_output_tokens=40, requests={"finished": 20, "error": 1}, images={"loaded": 4}),
    )

    assert (100, 70) == (found["input_tokens_per_s"], found["output_tokens_per_s"])
    endings = ("finished", "cancelled", "refused", "invalid", "failed")
    assert [2.0, 0.7, 1.0, 0.5, 0.2] == [found[f"{name}_per_s"] for name in endings]
    assert (0.5, 0.5) == (found["images_per_s"], found["bad_images_per_s"])


def test_ratios_and_speeds_are_of_the_last_minute_alone() -> None:
    earlier = Counts(
        num_prefix_queried_tokens=1000, num_prefix_hit_tokens=1000, num_drafts=100, num_draft_tokens=700, num_accepted_tokens=0,
        output_speed=distribution([0.2, 0.3]), ttft_s=distribution([4.0] * 50),
    )  # fmt: skip
    now = Counts(
        num_prefix_queried_tokens=3000, num_prefix_hit_tokens=1500, num_drafts=300, num_draft_tokens=2100, num_accepted_tokens=428,
        output_speed=distribution([0.2, 0.3, 370.0, 371.0]), ttft_s=distribution([4.0] * 50 + [0.3, 0.3]),
    )  # fmt: skip
    found = figures(now, now, earlier)

    assert 0.25 == found["cache_hit_ratio"]
    assert 3.14 == found["tokens_per_step"]
    assert round(428 / 1400, 5) == found["draft_acceptance"]
    assert 370.5 == found["decode_tokens_per_s"]
    assert 0.1 < (found["ttft_p50_s"] or 0) <= 0.5


@given(st.lists(st.floats(0, 20), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_in_the_bucket_of_the_value_at_its_rank(values: list[float], share: float) -> None:
    found = distribution(values).quantile(share)
    at_rank = sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]
    bucket = bisect_left(BOUNDS, at_rank)

    assert found is not None
    low, high = (0.0, *BOUNDS)[bucket], (*BOUNDS, BOUNDS[-1])[bucket]
    assert min(low, BOUNDS[-1]) - 1e-9 <= found <= high + 1e-9


@given(st.lists(st.floats(0, 20)), st.lists(st.floats(0, 20)))
def test_what_came_since_is_what_came_since(before: list[float], after: list[float]) -> None:
    since = distribution(before + after).since(distribution(before))

    assert distribution(after).counts == since.counts
    assert sum(after) == pytest.approx(since.sum, abs=1e-6)


def test_an_empty_distribution_says_nothing() -> None:
    empty = distribution([])

    assert (None, None) == (empty.quantile(0.5), empty.mean)
