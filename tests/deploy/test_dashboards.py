"""The dashboards that are committed: made by the generator, explained, and of metrics that there are."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from deploy.grafana import queries
from deploy.grafana.__main__ import FOLDER, dashboards
from deploy.grafana.figures import FAILED, OBJECTIVE
from server.metrics import catalog
from tests.deploy import expressions
from tests.deploy.expressions import ROOT, Expression, of_dashboards, of_rules, pages, panels, rules

EVERY = [*of_dashboards(), *of_rules("record"), *of_rules("alert")]
FUNCTIONS = {
    "absent", "and", "avg_over_time", "bottomk", "by", "changes", "count", "count_over_time", "deriv", "group_left", "histogram_quantile", "increase",
    "max", "min", "on", "or", "rate", "sum", "sum_over_time", "topk", "vector",
}  # fmt: skip
UNITS = {"bytes", "ops", "percentunit", "reqps", "s", "short", "si:tok/s"}
"""Grafana's names; behind `si:` stands what it does not know, to which it gives k, M and G."""

OWN = {"instance", "job"}
"""Labels that Prometheus gives."""


def names(panel: Any) -> str:
    return str(panel["title"])


def test_what_is_committed_is_what_the_generator_makes() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert dashboards() == committed, "run `python -m deploy.grafana`"


@pytest.mark.parametrize("panel", [panel for page in pages().values() for panel in panels(page)], ids=names)
def test_a_panel_says_what_it_shows_in_which_unit_and_where_the_limits_are(panel: Any) -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert [source] * (1 + len(panel["targets"])) == [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
    defaults = panel["fieldConfig"]["defaults"]
    assert panel["description"].endswith(".")
    assert panel["title"] != panel["description"]
    (unknown,) = [one["options"] for one in defaults["mappings"] if one["type"] == "special"]
    assert {"match": "null+nan", "result": {"text": "–", "color": "text"}} == unknown
    assert {
        defaults["unit"],
        *(one["value"] for each in panel["fieldConfig"]["overrides"] for one in each["properties"] if one["id"] == "unit"),
    } <= UNITS
    assert all(target["legendFormat"] for target in panel["targets"]), "a line without a name"
    assert [chr(ord("A") + number) for number in range(len(panel["targets"]))] == [target["refId"] for target in panel["targets"]]
    first, *rest = defaults["thresholds"]["steps"]
    assert first["value"] is None
    assert sorted({step["value"] for step in rest}) == [step["value"] for step in rest]
    if panel["type"] == "table":
        columns = {override["matcher"]["options"]: override["properties"] for override in panel["fieldConfig"]["overrides"]}
        assert {target["legendFormat"] for target in panel["targets"]} == set(columns)
        assert all({"unit", "thresholds"} <= {one["id"] for one in properties} for properties in columns.values())
    elif panel["type"] == "stat":
        assert rest or panel["title"] == "Tokens out", "a number without limits says nothing by its colour"


@pytest.mark.parametrize("name", pages())
def test_a_page_lets_its_reader_choose(name: str) -> None:
    page = pages()[name]
    variables = expressions.variables(page)
    assert {"datasource", "instance", "model", "tenant"} <= set(variables)
    for label in queries.VARIABLES:
        variable = variables[label]
        everything = ".+" if (name, label) == ("tenants", "tenant") else ".*"  # who has no valid key is no tenant
        assert ("query", True, True, everything) == tuple(variable[key] for key in ("type", "multi", "includeAll", "allValue"))
        assert {"type": "prometheus", "uid": "${datasource}"} == variable["datasource"]
    used = " ".join(target["expr"] for panel in panels(page) for target in panel["targets"])
    assert [] == [variable for variable in variables if variable != "datasource" and f"${variable}" not in used]
    titles = [panel["title"] for panel in page["panels"]]
    assert sorted(set(titles)) == sorted(titles)
    ids = [panel["id"] for panel in page["panels"]]
    assert list(range(1, len(ids) + 1)) == ids


@pytest.mark.parametrize("name", pages())
def test_no_panel_lies_over_another(name: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in pages()[name]["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for cell in ((place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])):
            assert cell not in taken, (panel["title"], taken[cell])
            taken[cell] = panel["title"]


@pytest.mark.parametrize("expression", EVERY, ids=str)
def test_an_expression_reads_what_the_catalog_has_by_labels_that_it_has(expression: Expression) -> None:
    recorded = {rule["record"] for rule in rules("record")}
    labels = set(OWN)
    assert expression.selectors
    for selector in expression.selectors:
        metric = selector.metric
        if metric is None:
            assert selector.name in recorded | {"up"}, f"`{selector.name}` is not in the catalog"
            own = set(selector.name.partition(":")[0].split("_")) if ":" in selector.name else OWN
        else:
            own = {*metric.labels, *OWN, *(["le"] if selector.name.endswith("_bucket") else [])}
        labels |= own
        for label, operator, value in selector.matchers:
            assert label in own, f"`{selector.name}` has no label `{label}`"
            if metric is not None and label == "le":
                assert value in [str(bound) for bound in metric.buckets]
            closed = next((by.values for by in metric.by if by.name == label), ()) if metric is not None else ()
            if closed and not value.startswith("$"):
                assert operator in ("=", "=~", "!~")
                assert [] == [one for one in value.split("|") if one not in closed]
    assert expression.grouped_by <= labels
    assert expression.words <= FUNCTIONS | labels


def test_every_metric_of_the_catalog_is_looked_at() -> None:
    used = {selector.metric.name for expression in EVERY for selector in expression.selectors if selector.metric is not None}
    assert set() == {metric.name for metric in catalog.CATALOG} - used


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("token_total", {}), ("tokens_total", {"outcome": "finished"}), ("tokens_total", {"kind": "outputs"}),
        ("tool_calls_total", {"outcome": "~invalid|wrong"}), ("engine_up", {"model": "kimi-k3"}), ("ttft_seconds", {}),
    ],
)  # fmt: skip
def test_the_generator_refuses_what_nothing_would_answer(name: str, labels: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=name):
        queries.series(name, **labels)


def test_pages_and_rules_mean_the_same_by_failing_and_by_late() -> None:
    (failed,) = [rule["expr"] for rule in rules("record") if rule["record"] == "instance:k3gw_requests_failed:rate5m"]
    assert f'outcome=~"{FAILED.removeprefix("~")}"' in failed
    late = [rule["expr"] for rule in rules("alert") if rule["alert"].startswith("K3GatewayFirstTokenLate")]
    assert 2 == len(late)
    assert all(f" {OBJECTIVE}" in text for text in late)


def test_provisioning_is_whole() -> None:
    folder = ROOT / "deploy" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text(encoding="utf-8"))["datasources"]
    (provider,) = yaml.safe_load((folder / "dashboards" / "k3-gateway.yaml").read_text(encoding="utf-8"))["providers"]
    scraped = yaml.safe_load((expressions.RULES.parent / "prometheus.yml").read_text(encoding="utf-8"))["global"]
    assert ("prometheus", scraped["scrape_interval"]) == (source["type"], source["jsonData"]["timeInterval"])
    assert ("file", str) == (provider["type"], type(provider["options"]["path"]))
