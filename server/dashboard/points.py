"""Counts of one moment -> the figures that are plotted.

Invariant: pure. A figure that nothing is known of is None, which the page leaves open: nothing found in the cache is 0, nothing
looked up is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from server.engine.base import EngineStats

Figure = float | None
Point = tuple[Figure, ...]

_ENDINGS: Final[Mapping[str, str]] = {
    "finished": "finished",
    "cancelled": "cancelled",
    "limited": "refused",
    "over_budget": "refused",
    "rejected": "refused",
    "invalid": "invalid",
    "denied": "invalid",
    "unauthenticated": "invalid",
}
"""Outcome -> what the page calls it; what is not here has `failed`."""


@dataclass(slots=True, frozen=True)
class Distribution:
    """How many values were in which bucket. `counts`, shape (len(bounds) + 1,): up to each bound, and above the last."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    sum: float = 0.0

    def since(self, before: Distribution) -> Distribution:
        """What has come to it."""
        if not before.counts:
            return self
        counts = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        return Distribution(self.bounds, counts, self.sum - before.sum)

    @property
    def mean(self) -> Figure:
        """None where there is no value."""
        count = sum(self.counts)
        return self.sum / count if count else None

    def quantile(self, share: float) -> Figure:
        """As Prometheus's `histogram_quantile` has it: values are spread evenly over their bucket, none above the last bound."""
        rank = share * sum(self.counts)
        if not rank:
            return None
        below, low = 0, 0.0
        for count, high in zip(self.counts, self.bounds, strict=False):
            if count and below + count >= rank:
                return low + (high - low) * (rank - below) / count
            below, low = below + count, high
        return self.bounds[-1]


@dataclass(slots=True, frozen=True)
class Counts:
    """What was counted since the start, and what is under way. `requests`: outcome -> how many; `images`: the same."""

    num_input_tokens: int = 0
    num_output_tokens: int = 0
    requests: Mapping[str, int] = field(default_factory=dict)
    images: Mapping[str, int] = field(default_factory=dict)
    ttft_s: Distribution = Distribution()
    output_speed: Distribution = Distribution()
    token_gap_s: Distribution = Distribution()
    overhead_s: Distribution = Distribution()
    loop_lag_s: Distribution = Distribution()
    num_prefix_queried_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_queued: int = 0
    kv_cache_usage: Figure = None
    num_pending_rows: int = 0


def added(parts: Sequence[Counts], stats: EngineStats | None) -> Counts:
    """What several processes have counted, together. `stats`: of their engine, or all their engines."""
    sums: dict[str, Any] = {}
    for name in Counts.__dataclass_fields__:
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], Distribution):
            counts = tuple(sum(each) for each in zip(*(value.counts for value in values), strict=True))
            sums[name] = Distribution(values[0].bounds, counts, sum(value.sum for value in values))
        elif isinstance(values[0], Mapping):
            sums[name] = {key: sum(value.get(key, 0) for value in values) for key in {key: None for of in values for key in of}}
        elif name != "kv_cache_usage":
            sums[name] = sum(values)
    if stats is not None:
        sums |= {"num_running": stats.num_running, "num_waiting": stats.num_waiting, "kv_cache_usage": stats.kv_cache_usage}
    return Counts(**sums)


@dataclass(slots=True, frozen=True)
class Sample:
    """Counts at a moment of the monotonic clock."""

    at_s: float
    counts: Counts


COLUMNS: Final = (
    "unix_s", "input_tokens_per_s", "output_tokens_per_s", "running", "waiting", "queued", "kv_cache_usage",
    "cache_hit_ratio", "draft_acceptance", "tokens_per_step", "decode_tokens_per_s", "ttft_p50_s", "ttft_p90_s",
    "token_gap_p50_s", "token_gap_p99_s", "overhead_p50_s", "overhead_p90_s", "loop_lag_p50_s", "loop_lag_p99_s",
    "finished_per_s", "cancelled_per_s", "refused_per_s", "invalid_per_s", "failed_per_s", "ledger_pending_rows",
    "images_per_s", "bad_images_per_s",
)  # fmt: skip
"""The figures of a point, in order. Those per second are of the last seconds, ratios and quantiles of the last minute."""


def point_of(unix_s: float, now: Sample, shortly: Sample, earlier: Sample) -> Point:
    """The figures of `now`. `shortly` before it was the sample that rates go by, `earlier` the one for ratios and quantiles."""
    counts, short, long = now.counts, shortly.counts, earlier.counts
    span_s = now.at_s - shortly.at_s

    def rate(count: int, before: int) -> Figure:
        return round((count - before) / span_s, 3) if span_s > 0 else None

    requests, requests_before = _by_ending(counts.requests), _by_ending(short.requests)
    num_drafts, num_accepted = counts.num_drafts - long.num_drafts, counts.num_accepted_tokens - long.num_accepted_tokens
    num_queried = counts.num_prefix_queried_tokens - long.num_prefix_queried_tokens
    num_images, num_before = sum(counts.images.values()), sum(short.images.values())
    num_loaded, num_loaded_before = counts.images.get("loaded", 0), short.images.get("loaded", 0)
    return (
        round(unix_s, 3),
        rate(counts.num_input_tokens, short.num_input_tokens),
        rate(counts.num_output_tokens, short.num_output_tokens),
        counts.num_running,
        counts.num_waiting,
        counts.num_queued,
        _rounded(counts.kv_cache_usage),
        ratio(counts.num_prefix_hit_tokens - long.num_prefix_hit_tokens, num_queried),
        ratio(num_accepted, counts.num_draft_tokens - long.num_draft_tokens),
        None if not num_drafts else _rounded(1 + num_accepted / num_drafts),
        _rounded(counts.output_speed.since(long.output_speed).mean),
        *_quantiles(counts.ttft_s.since(long.ttft_s), 0.5, 0.9),
        *_quantiles(counts.token_gap_s.since(long.token_gap_s), 0.5, 0.99),
        *_quantiles(counts.overhead_s.since(long.overhead_s), 0.5, 0.9),
        *_quantiles(counts.loop_lag_s.since(long.loop_lag_s), 0.5, 0.99),
        *(rate(requests[name], requests_before[name]) for name in ("finished", "cancelled", "refused", "invalid", "failed")),
        counts.num_pending_rows,
        rate(num_loaded, num_loaded_before),
        rate(num_images - num_loaded, num_before - num_loaded_before),
    )


def ratio(part: float, whole: float) -> Figure:
    """`part` of `whole`, None of nothing."""
    return round(part / whole, 5) if whole > 0 else None


def _by_ending(outcomes: Mapping[str, int]) -> Counter[str]:
    endings: Counter[str] = Counter()
    for outcome, count in outcomes.items():
        endings[_ENDINGS.get(outcome, "failed")] += count
    return endings


def _quantiles(distribution: Distribution, *shares: float) -> tuple[Figure, ...]:
    return tuple(_rounded(distribution.quantile(share), 6) for share in shares)


def _rounded(figure: Figure, digits: int = 5) -> Figure:
    return None if figure is None else round(figure, digits)
