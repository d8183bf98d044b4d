"""What has been counted, for the page: read where a scrape of `/metrics` reads it, so that the two can't differ.

The one difference is meant: what requests took that have not ended is in these figures already, and in a scrape's when they have.
A page that looks on would else see nothing of a long answer, and all of it at its end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from server.dashboard.points import Counts, Distribution
from server.gateway import Gateway
from server.metrics import catalog
from server.metrics.recorder import Recorder


@dataclass(slots=True)
class TenantCounts:
    """What was counted of one tenant since the start; tokens of requests under way are among them."""

    num_requests: int = 0
    num_refused: int = 0
    num_input_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0

    def add(self, other: TenantCounts) -> None:
        """What somebody else has counted of it."""
        self.num_requests += other.num_requests
        self.num_refused += other.num_refused
        self.num_input_tokens += other.num_input_tokens
        self.num_cached_tokens += other.num_cached_tokens
        self.num_output_tokens += other.num_output_tokens


def counts_of(gateway: Gateway) -> Counts:
    """Of all tenants together, as they are now."""
    recorder, engine, queue = gateway.recorder, gateway.engine, gateway.queue
    tokens = recorder.sums(catalog.TOKENS, "kind")
    under_way = gateway.under_way()
    stats = None if engine is None else engine.stats
    return Counts(
        num_input_tokens=int(tokens.get("input", 0)) + sum(record.num_input_tokens for record in under_way),
        num_output_tokens=int(tokens.get("output", 0)) + sum(record.num_output_tokens for record in under_way),
        requests=_whole(recorder.sums(catalog.REQUESTS, "outcome")),
        images=_whole(recorder.sums(catalog.IMAGES, "outcome")),
        ttft_s=_distribution(recorder, catalog.TTFT_SECONDS),
        output_speed=_distribution(recorder, catalog.OUTPUT_SPEED),
        token_gap_s=_distribution(recorder, catalog.INTER_TOKEN),
        overhead_s=_distribution(recorder, catalog.OVERHEAD),
        loop_lag_s=_distribution(recorder, catalog.LOOP_LAG),
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


class TenantTokens:
    """Tokens of all tenants at one moment: as they are counted, which is cheap to keep, until somebody looks at `by_tenant`.

    `elsewhere`: what other workers have counted.
    """

    def __init__(self, gateway: Gateway, elsewhere: Sequence[Mapping[str, TenantCounts]] = ()) -> None:
        recorder = gateway.recorder
        self._elsewhere = elsewhere
        self._ended = dict(recorder.numbers[catalog.TOKENS].values)
        self._under_way: dict[str, tuple[int, int, int]] = {}  # of a tenant, not of each request: a dozen of these are kept
        for record in gateway.under_way():
            tenant = recorder.names.label(record.tenant)
            num_input, num_cached, num_output = self._under_way.get(tenant, (0, 0, 0))
            self._under_way[tenant] = (
                num_input + record.num_input_tokens,
                num_cached + record.num_cached_tokens,
                num_output + record.num_output_tokens,
            )

    @cached_property
    def by_tenant(self) -> Mapping[str, TenantCounts]:
        """Of each tenant that has asked for anything and has series of its own; what is no tokens is left at 0."""
        found: defaultdict[str, TenantCounts] = defaultdict(TenantCounts)
        for (tenant, _, kind), count in self._ended.items():
            if kind == "input":
                found[tenant].num_input_tokens += int(count)
            elif kind == "cached_input":
                found[tenant].num_cached_tokens += int(count)
            elif kind == "output":
                found[tenant].num_output_tokens += int(count)
        for tenant, (num_input, num_cached, num_output) in self._under_way.items():
            counts = found[tenant]
            counts.num_input_tokens += num_input
            counts.num_cached_tokens += num_cached
            counts.num_output_tokens += num_output
        for part in self._elsewhere:
            for tenant, others in part.items():
                found[tenant].add(others)
        self._ended.clear()
        return dict(found)


def tenant_counts(gateway: Gateway, elsewhere: Sequence[Mapping[str, TenantCounts]] = ()) -> Mapping[str, TenantCounts]:
    """Of each tenant that has asked for anything and has series of its own, as it is now; `elsewhere` as in `TenantTokens`."""
    recorder, found = gateway.recorder, dict(TenantTokens(gateway, elsewhere).by_tenant)
    for tenant, count in recorder.sums(catalog.REQUESTS, "tenant").items():
        found.setdefault(tenant, TenantCounts()).num_requests += int(count)
    for tenant, count in recorder.sums(catalog.REJECTED, "tenant").items():
        found.setdefault(tenant, TenantCounts()).num_refused += int(count)
    found.pop("", None)
    return found


def _whole(counts: Mapping[str, float]) -> dict[str, int]:
    return {label: int(count) for label, count in counts.items()}


def _distribution(recorder: Recorder, metric: catalog.Metric) -> Distribution:
    counts, total = recorder.distribution(metric)
    return Distribution(metric.buckets, tuple(counts), total)
