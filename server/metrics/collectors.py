"""What is read when a scrape asks, and costs nothing between scrapes: the counts of the engine and of admission."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.engine.base import Engine
from server.metrics import catalog


@dataclass(slots=True, frozen=True)
class AdmissionFigures:
    """Admission and the ledger as they are now. Mappings are by tenant, `ledger_rows` by what became of them."""

    queued: Mapping[str, int] = field(default_factory=dict)
    service: Mapping[str, float] = field(default_factory=dict)
    budget_left: Mapping[str, float] = field(default_factory=dict)
    ledger_rows: Mapping[str, int] = field(default_factory=dict)
    num_pending_rows: int = 0
    num_limits_failures: int = 0


class EngineCollector(Collector):
    """Reads the engine's counts at each scrape."""

    def __init__(self) -> None:
        self.engine: Engine | None = None

    def collect(self) -> Iterable[Metric]:
        engine = self.engine
        yield _single(catalog.ENGINE_UP, float(engine is not None and not engine.dead))
        if engine is None:
            return
        stats = engine.stats
        for metric, value in (
            (catalog.ENGINE_RUNNING, stats.num_running),
            (catalog.ENGINE_WAITING, stats.num_waiting),
            (catalog.ENGINE_KV_USAGE, stats.kv_cache_usage),
            (catalog.ENGINE_PREEMPTIONS, stats.num_preemptions),
            (catalog.ENGINE_PREFIX_QUERIED, stats.num_prefix_queried_tokens),
            (catalog.ENGINE_PREFIX_HIT, stats.num_prefix_hit_tokens),
            (catalog.ENGINE_DRAFTS, stats.num_drafts),
            (catalog.ENGINE_DRAFT_TOKENS, stats.num_draft_tokens),
        ):
            yield _single(metric, value)
        accepted = {str(position): count for position, count in enumerate(stats.accepted_per_position)}
        yield _labelled(catalog.ENGINE_ACCEPTED, accepted)


class AdmissionCollector(Collector):
    """Reads `figures` at each scrape."""

    def __init__(self, figures: Callable[[], AdmissionFigures]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        figures = self._figures()
        for metric, values in (
            (catalog.QUEUED, figures.queued),
            (catalog.FAIR_SERVICE, figures.service),
            (catalog.BUDGET_LEFT, figures.budget_left),
            (catalog.LEDGER_ROWS, figures.ledger_rows),
        ):
            yield _labelled(metric, values)
        yield _single(catalog.LEDGER_PENDING, figures.num_pending_rows)
        yield _single(catalog.LIMITS_AWAY, figures.num_limits_failures)


def _single(metric: catalog.Metric, value: float) -> Metric:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family: Metric = kind(catalog.PREFIX + metric.name, metric.meaning, value=value)
    return family


def _labelled(metric: catalog.Metric, values: Mapping[str, float]) -> Metric:
    """`values`: of the metric's one label -> value."""
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(catalog.PREFIX + metric.name, metric.meaning, labels=metric.labels)
    for label, value in values.items():
        family.add_metric([label], value)
    return family
