"""`docs/metrics.md`, made from the catalog: `python -m server.metrics.reference > docs/metrics.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

from server.metrics import catalog
from server.metrics.catalog import Limits, Metric

_HEAD: Final = """\
# Metrics

Made from `server/metrics/catalog.py` by `python -m server.metrics.reference`; edit that.

`GET /metrics` is Prometheus's text format: the gateway's own metrics, which begin with `k3gw_`, and vLLM's, which begin with
`vllm:`, where it runs. Who may read it is said in [admin.md](admin.md). Several gateways are several targets of one job: sum
their counters and histograms; of what they share take the `min` (`budget_remaining_ratio`) or the `max` (`tenant_weight`).
A gateway with several [workers](workers.md) is one target, and whichever of them answers tells of all:
{rules}.

- Requests are counted when they end, on every ending. What is under way is in `inflight_requests`, `queued_requests` and the
  engine's own figures only.
- A tenant beyond `metrics.max_tenants` (default {max_tenants}) has no series of its own and shares those of `other`. The first
  that are active have a name, and keep it as long as the process lives; where all tenants of the store fit, all have one at once.
- What a client sends never becomes a label: models are configured names, and empty where none of them was asked for.
- Nothing tells when a series began (`_created`).
"""
_ACCEPTED: Final = "rate(k3gw_engine_spec_accepted_tokens_total[5m])"
_DRAFTS: Final = "rate(k3gw_engine_spec_drafts_total[5m])"
_OURS: Final = "k3gw_overhead_seconds"
_SPEED: Final = "k3gw_request_output_tokens_per_second"
_PREFIX: Final = "k3gw_engine_prefix_cache"
_TOKENS: Final = "sum by (tenant) (rate(k3gw_tokens_total"
_FIGURES: Final = (
    ("decode speed of one user, tokens per second", f"sum(rate({_SPEED}_sum[5m])) / sum(rate({_SPEED}_count[5m]))"),
    ("tokens per step of the engine", f"1 + sum({_ACCEPTED}) / sum({_DRAFTS})"),
    ("acceptance by position", f"sum by (position) ({_ACCEPTED}) / scalar(sum({_DRAFTS}))"),
    (
        "prefix-cache hit rate",
        f"sum(rate({_PREFIX}_hit_tokens_total[5m])) / sum(rate({_PREFIX}_queried_tokens_total[5m]))",
    ),
    ("the same of a tenant", f'{_TOKENS}{{kind="cached_input"}}[5m])) / {_TOKENS}{{kind="input"}}[5m]))'),
    ("the gateway's own part of a request, seconds", f"sum(rate({_OURS}_sum[5m])) / sum(rate({_OURS}_count[5m]))"),
)
_GROUPS: Final = (
    ("Requests", catalog.RECORDED, "Counted here."),
    ("Admission and ledger", catalog.FROM_ADMISSION, "Read when a scrape asks."),
    ("Engine", catalog.FROM_ENGINE, "Read when a scrape asks, from the engine's own counts since its start."),
)


def page(limits: Limits | None = None) -> str:
    """The page; the numbers of series are those for `limits`."""
    limits = limits or Limits()
    return "\n".join(_lines(limits)) + "\n"


def _lines(limits: Limits) -> Iterator[str]:
    yield _HEAD.format(max_tenants=f"{limits.max_tenants:,}", rules=_rules())
    yield from _table(("figure", "expression"), ((what, f"`{expression}`") for what, expression in _FIGURES))
    for title, metrics, what in _GROUPS:
        yield f"\n## {title}\n\n{what}\n"
        yield from _table(("name", "kind", "unit", "labels", "meaning", "series at most"), (_row(m, limits) for m in metrics))
    yield "\n## Labels\n\nA value that is in no closed set counts as `other`.\n"
    labels = {label: None for metric in catalog.CATALOG for label in metric.by}
    yield from _table(("label", "values", "what it says"), ((f"`{x.name}`", _values(x), x.origin) for x in labels))
    yield "\n## Buckets\n\nUpper bounds; the last one is infinite.\n"
    histograms = [metric for metric in catalog.CATALOG if metric.buckets]
    yield from _table(("histogram", "bounds"), ((f"`{m.name}`", " ".join(f"{b:g}" for b in m.buckets)) for m in histograms))
    yield from _maximum(limits)


def _rules() -> str:
    """What a scrape of several workers does with what each of them says."""
    named = [metric for metric in catalog.CATALOG if metric is not catalog.BUILD_INFO]
    by_rule = {rule: [f"`{metric.name}`" for metric in named if metric.over_workers == rule] for rule in ("min", "max")}
    least, most = (", ".join(names) for names in by_rule.values())
    engine = "the engine's figures are those of the one engine"
    return f"they are added up, but for {least} (the `min`) and {most} (the `max`);\n{engine}"


def _maximum(limits: Limits) -> Iterator[str]:
    histograms = [metric for metric in catalog.CATALOG if metric.kind == "histogram" and "tenant" in metric.labels]
    buckets = sum(len(metric.buckets) + 3 for metric in histograms)
    yield "\n## How many series there can be\n"
    yield f"With {limits.max_tenants:,} tenants and {limits.num_models} model: at most {catalog.most_series(limits):,}."
    yield "That is with every tenant having met every outcome of everything. One that is served, and now and then refused, has"
    yield f"{buckets} for each model in its {len(histograms)} histograms, and about 20 others: 7 kB in each scrape."


def _row(metric: Metric, limits: Limits) -> tuple[str, ...]:
    labels = " ".join(f"`{label}`" for label in metric.labels)
    return f"`{metric.name}`", metric.kind, metric.unit, labels, metric.meaning, f"{metric.most_series(limits):,}"


def _values(label: catalog.Label) -> str:
    if label is catalog.POSITION:
        return f"`0` to `{label.values[-1]}`"
    if label in (catalog.TENANT, catalog.MODEL):
        return "names"
    return " ".join(f"`{value}`" for value in label.values if value) or "one"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    cells = list(head)
    yield f"| {' | '.join(cells)} |"
    yield "|" + "---|" * len(cells)
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    sys.stdout.write(page())
