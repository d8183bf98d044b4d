"""What has been counted, for the page: read where a scrape of `/metrics` reads it, so that the two can't differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from server.dashboard.points import Counts, Distribution
from server.gateway import Gateway
from server.metrics import catalog
from server.metrics.recorder import Recorder


@dataclass(slots=True)
class TenantCounts:
    """What was counted of one tenant since the start."""

    num_requests: int = 0
    num_refused: int = 0
    num_input_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0


def counts_of(gateway: Gateway) -> Counts:
    """Of all tenants together, as they are now."""
    recorder, engine, queue = gateway.recorder, gateway.engine, gateway.queue
    tokens = _sums(recorder, catalog.TOKENS, "kind")
    stats = None if engine is None else engine.stats
    return Counts(
        num_input_tokens=tokens.get("input", 0),
        num_output_tokens=tokens.get("output", 0),
        requests=_sums(recorder, catalog.REQUESTS, "outcome"),
        images=_sums(recorder, catalog.IMAGES, "outcome"),
        ttft_s=_distribution(recorder, catalog.TTFT_SECONDS),
        output_speed=_distribution(recorder, catalog.OUTPUT_SPEED),
        num_prefix_queried_tokens=stats.num_prefix_queried_tokens if stats else 0,
        num_prefix_hit_tokens=stats.num_prefix_hit_tokens if stats else 0,
        num_drafts=stats.num_drafts if stats else 0,
        num_draft_tokens=stats.num_draft_tokens if stats else 0,
        num_accepted_tokens=sum(stats.accepted_per_position) if stats else 0,
        num_running=stats.num_running if stats else 0,
        num_waiting=stats.num_waiting if stats else 0,
        num_queued=queue.num_queued if queue else 0,
        kv_cache_usage=stats.kv_cache_usage if stats else None,
        num_pending_rows=gateway.storage.ledger.num_pending,
    )


def tenant_counts(recorder: Recorder) -> Mapping[str, TenantCounts]:
    """Of each tenant that has asked for anything."""
    found: defaultdict[str, TenantCounts] = defaultdict(TenantCounts)
    for name, value in _sums(recorder, catalog.REQUESTS, "tenant").items():
        found[name].num_requests = value
    for name, value in _sums(recorder, catalog.REJECTED, "tenant").items():
        found[name].num_refused = value
    for kind in ("input", "cached_input", "output"):
        for name, value in _sums(recorder, catalog.TOKENS, "tenant", kind=kind).items():
            setattr(
                found[name],
                {"input": "num_input_tokens", "cached_input": "num_cached_tokens"}.get(kind, "num_output_tokens"),
                value,
            )
    return found


def _sums(recorder: Recorder, metric: catalog.Metric, by: str, **labels: str) -> dict[str, int]:
    sums: defaultdict[str, int] = defaultdict(int)
    name = catalog.PREFIX + metric.name
    for family in recorder.registry.restricted_registry([name]).collect():
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                sums[sample.labels[by]] += int(sample.value)
    return sums


def _distribution(recorder: Recorder, metric: catalog.Metric) -> Distribution:
    cumulative: defaultdict[float, int] = defaultdict(int)
    total, name = 0.0, catalog.PREFIX + metric.name
    for family in recorder.registry.restricted_registry([name + "_bucket", name + "_sum"]).collect():
        for sample in family.samples:
            if sample.name.endswith("_sum"):
                total += sample.value
            elif sample.name.endswith("_bucket"):
                cumulative[float(sample.labels["le"])] += int(sample.value)
    counts, before = [], 0
    for bound in (*metric.buckets, float("inf")):
        counts.append(cumulative[bound] - before)
        before = cumulative[bound]
    return Distribution(metric.buckets, tuple(counts), total)
