"""What is read when a scrape asks, and costs nothing between scrapes: the counts of the engine and of admission."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from server.engine.base import EngineStats, ModelFacts
from server.metrics import catalog
from server.metrics.families import PIECE_SERIES, head_of, labelled, labels_of, single
from server.metrics.names import TenantNames


@dataclass(slots=True, frozen=True)
class AdmissionFigures:
    """Admission and the ledger as they are now. Mappings are by tenant, `ledger_rows` by what became of them.

    `weights`: of all tenants of the store. `budget_left`: pairs of tenant and share, None for none, made while they are read, as
    each takes a look at the tenant's counts.
    """

    queued: Mapping[str, int] = field(default_factory=dict)
    service: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    budget_left: Iterable[tuple[str, float | None]] = ()
    ledger_rows: Mapping[str, int] = field(default_factory=dict)
    num_pending_rows: int = 0
    limits_up: bool = True
    num_limits_failures: int = 0
    num_held_bytes: int = 0


class EngineLooked(Protocol):
    """What is read of `server.engine.base.Engine`."""

    @property
    def stats(self) -> EngineStats:
        """As there."""
        ...

    @property
    def facts(self) -> ModelFacts:
        """As there."""
        ...

    @property
    def dead(self) -> bool:
        """As there."""
        ...


def engine_pieces(engine: EngineLooked | None) -> Iterator[str]:
    """The engine's figures; before there is one, only that there is none."""
    yield single(catalog.ENGINE_UP, int(engine is not None and not engine.dead))
    if engine is None:
        return
    stats, facts = engine.stats, engine.facts
    for metric, value in (
        (catalog.ENGINE_SEATS, facts.seats),
        (catalog.ENGINE_CONTEXT, facts.context_length),
        (catalog.ENGINE_RUNNING, stats.num_running),
        (catalog.ENGINE_WAITING, stats.num_waiting),
        (catalog.ENGINE_KV_USAGE, stats.kv_cache_usage),
        (catalog.ENGINE_PREEMPTIONS, stats.num_preemptions),
        (catalog.ENGINE_PREFIX_QUERIED, stats.num_prefix_queried_tokens),
        (catalog.ENGINE_PREFIX_HIT, stats.num_prefix_hit_tokens),
        (catalog.ENGINE_DRAFTS, stats.num_drafts),
        (catalog.ENGINE_DRAFT_TOKENS, stats.num_draft_tokens),
    ):
        yield single(metric, value)
    accepted = stats.accepted_per_position[: catalog.MAX_POSITIONS - 1]
    yield labelled(catalog.ENGINE_ACCEPTED, {str(position): count for position, count in enumerate(accepted)})


def admission_pieces(figures: AdmissionFigures, names: TenantNames) -> Iterator[str]:
    """What admission and the ledger say."""
    names.adopt(figures.weights.keys())
    for metric, values in (
        (catalog.QUEUED, figures.queued),
        (catalog.FAIR_SERVICE, figures.service),
        (catalog.WEIGHT, figures.weights),
    ):
        yield labelled(metric, names.summed(values))
    yield from _budget_pieces(figures.budget_left, names)
    yield labelled(catalog.LEDGER_ROWS, figures.ledger_rows)
    for metric, value in (
        (catalog.LEDGER_PENDING, figures.num_pending_rows),
        (catalog.LIMITS_UP, int(figures.limits_up)),
        (catalog.LIMITS_AWAY, figures.num_limits_failures),
        (catalog.HELD_BYTES, figures.num_held_bytes),
    ):
        yield single(metric, value)


def _budget_pieces(budget_left: Iterable[tuple[str, float | None]], names: TenantNames) -> Iterator[str]:
    """A piece, and an empty one behind it, for so many tenants that were looked at; most of them may have nothing to say."""
    metric = catalog.BUDGET_LEFT
    yield head_of(metric)
    name = catalog.PREFIX + metric.name
    least_of_others: float | None = None
    left = iter(budget_left)
    while some := list(islice(left, PIECE_SERIES // 2)):
        lines = []
        for tenant, ratio in some:
            if ratio is None:
                continue
            label = names.shown(tenant)
            if label == catalog.OTHER:
                least_of_others = ratio if least_of_others is None else min(least_of_others, ratio)
            else:
                lines.append(f"{name}{{{labels_of(metric.labels, (label,))}}} {ratio!r}\n")
        yield "".join(lines)
        yield ""
    if least_of_others is not None:
        yield f"{name}{{{labels_of(metric.labels, (catalog.OTHER,))}}} {least_of_others!r}\n"
