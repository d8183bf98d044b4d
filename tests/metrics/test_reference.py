"""The page about metrics is what the catalog says."""

from __future__ import annotations

import re
from pathlib import Path

from server.metrics import catalog, reference
from server.metrics.catalog import Limits
from server.metrics.recorder import Recorder
from server.record import GenerationRecord

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def test_the_committed_page_is_made_from_the_catalog() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.page()


def test_the_page_has_every_metric_and_every_value_of_every_label() -> None:
    page = reference.page()
    assert [] == [metric.name for metric in catalog.CATALOG if f"| `{metric.name}` |" not in page]
    values = {value for metric in catalog.CATALOG for label in metric.by for value in label.values if label.name != "position"}
    assert [] == [value for value in values if value and f"`{value}`" not in page]


def test_names_say_kind_and_unit() -> None:
    """As Prometheus's naming rules have it, so that dashboards need not look them up."""
    for metric in catalog.CATALOG:
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        assert (metric.kind == "histogram") == bool(metric.buckets), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name
        for unit in ("seconds", "bytes", "ratio"):
            assert metric.name.removesuffix("_total").endswith(f"_{unit}") == (metric.unit == unit), metric.name


def test_the_documents_agree_on_what_a_tenant_costs_a_scrape() -> None:
    recorder = Recorder(["kimi-k3"], max_tenants=10)
    record = GenerationRecord("r", "customer-01", "kimi-k3", arrived_s=0.0, ended_s=1.0, first_token_s=0.5)
    record.token_gaps, record.choice_speeds = [1] * 12, [40.0]
    before = "".join(recorder.pieces())
    for outcome in ("finished", "cancelled", "invalid", "limited"):
        record.outcome = outcome
        recorder.started(record)
        recorder.ended(record)
    lines = set("".join(recorder.pieces()).splitlines()) - set(before.splitlines())
    kilobytes = sum(map(len, lines)) / 1000
    said = {
        float(found)
        for name in ("metrics.md", "operations.md")
        for found in re.findall(r"(\d+) kB (?:in each|of a) scrape", PAGE.with_name(name).read_text(encoding="utf-8"))
    }
    assert said == {7.0}
    assert 5 <= kilobytes <= 7, "tools, drafts, budget, weight and the queue come on top"
    assert 60 <= len(lines) <= 88


def test_the_maximum_grows_with_tenants_and_models_and_nothing_else() -> None:
    one = catalog.most_series(Limits(1, 1))
    assert catalog.most_series(Limits(2, 1)) - one == catalog.most_series(Limits(3, 1)) - catalog.most_series(Limits(2, 1)) > 0
    assert catalog.most_series(Limits(1, 2)) > one
