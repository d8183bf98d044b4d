"""Every expression that ships, asked of a real Prometheus that watches two replicas at work; and figures held against the ledger."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from server.metrics import catalog
from tests.deploy.expressions import Expression, of_dashboards, of_rules, pages, rules
from tests.deploy.replay import AS_IT_IS, replayed
from tests.deploy.scene import ACCEPTED, DRAFT, NUM_SEATS, TENANTS, TOKENS_PER_STEP, Scene, scene
from tests.services.prometheus import Prometheus, Sample
from tests.wire.customers import ledger_rows

EVERY = [*of_dashboards(), *of_rules("record"), *of_rules("alert")]
PANELS = {str(expression): expression for expression in of_dashboards()}
COLUMNS = {
    "input": "input_tokens",
    "cached_input": "cached_tokens",
    "output": "output_tokens",
    "reasoning": "reasoning_tokens",
    "discarded": "discarded_tokens",
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("prometheus")) as made:
        yield made


def not_there(prometheus: Prometheus, expression: Expression, instance: str = ".+") -> list[str]:
    """What the expression reads, and Prometheus has never had."""
    asked = [selector.of(instance) for selector in expression.selectors if ":" not in selector.name]
    asked += [selector.name for selector in expression.selectors if ":" in selector.name]
    return [text for text in asked if not prometheus.get("series", **{"match[]": text})]


def labelled(expression: Expression, samples: list[Sample]) -> bool:
    """Whether each label of the legend has a value in every series: a line without a name is nobody's."""
    return all(sample.labels.get(label) for label in re.findall(r"\{\{(\w+)\}\}", expression.legend) for sample in samples)


@pytest.mark.parametrize("expression", PANELS.values(), ids=str)
def test_a_panel_has_data(played: Scene, expression: Expression) -> None:
    assert [] == not_there(played.prometheus, expression)
    samples = played.prometheus.course(expression.filled())
    assert samples
    assert labelled(expression, samples)


@pytest.mark.parametrize("expression", PANELS.values(), ids=str)
def test_a_panel_shows_what_its_page_was_asked_for(played: Scene, expression: Expression) -> None:
    instance = played.houses[0].url.removeprefix("http://")
    samples = played.prometheus.course(expression.filled(instance=instance, tenant="acme|none", model="kimi-k3"))
    if "rejected_total" not in expression.text:  # of which acme has none
        assert samples
    for label, value in (("instance", instance), ("tenant", "acme"), ("model", "kimi-k3")):
        assert {sample.labels.get(label, value) for sample in samples} <= {value}


@pytest.fixture(scope="module")
def renames(played: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with replayed(tmp_path_factory.mktemp("renames"), played.texts) as watching:
        yield watching


def has_data(prometheus: Prometheus, panel: Expression, instance: str) -> bool:
    return bool(prometheus.now(panel.filled(instance=instance)))


@pytest.mark.parametrize("metric", [metric.name for metric in catalog.CATALOG])
def test_a_metric_that_is_renamed_is_missed_wherever_it_is_read(renames: Prometheus, metric: str) -> None:
    """The checks above fail then, of each expression that reads it; and they do not where nothing was renamed."""
    readers = [expression for expression in EVERY if metric in expression.metrics]
    assert readers
    for reader in readers:
        assert not_there(renames, reader, metric)
        assert [] == not_there(renames, reader, AS_IT_IS)
    for panel in (reader for reader in readers if reader in PANELS.values()):
        assert has_data(renames, panel, AS_IT_IS)
        assert "vector(0)" in panel.text or not has_data(renames, panel, metric)


@pytest.mark.parametrize("expression", of_rules("record"), ids=str)
def test_a_recording_rule_records(played: Scene, expression: Expression) -> None:
    assert [] == not_there(played.prometheus, expression)
    assert played.prometheus.course(expression.text)
    assert played.prometheus.course(expression.where)


@pytest.mark.parametrize("expression", of_rules("alert"), ids=str)
def test_an_alert_has_something_to_look_at(played: Scene, expression: Expression) -> None:
    assert [] == not_there(played.prometheus, expression)
    played.prometheus.now(expression.text)
    assert played.prometheus.course(expression.always_true().text)


def test_prometheus_finds_nothing_wrong_with_the_rules(played: Scene) -> None:
    found = [rule for group in played.prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert sum(1 for kind in ("record", "alert") for _ in rules(kind)) == len(found)
    assert {("ok", None)} == {(rule["health"], rule.get("lastError")) for rule in found}


@pytest.mark.parametrize("name", pages())
def test_a_page_finds_values_for_its_variables(played: Scene, name: str) -> None:
    for variable in pages()[name]["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()
            values = played.prometheus.get(f"label/{label}/values", **{"match[]": metric})
            assert {"tenant": {"acme", "small", "zeta"}, "model": {"kimi-k3", "kimi-k3-strict"}}.get(label, set(values)) == set(
                values
            )
            assert values


def test_tokens_are_the_ledgers_to_the_token(played: Scene) -> None:
    ledger: Counter[tuple[str, str]] = Counter()
    for row in played.rows():
        for kind, column in COLUMNS.items():
            ledger[row["tenant"], kind] += row[column]
    samples = played.prometheus.now("sum by (tenant, kind) (k3gw_tokens_total)")
    assert {key: count for key, count in ledger.items() if count} == {
        (sample.labels["tenant"], sample.labels["kind"]): sample.last for sample in samples if sample.last
    }
    assert all(ledger["acme", kind] for kind in COLUMNS)


def test_requests_are_counted_by_how_they_ended(played: Scene) -> None:
    prometheus = played.prometheus
    assert dict(played.outcomes) == prometheus.by("outcome", "sum by (outcome) (k3gw_requests_total)")
    of_acme = Counter(row["outcome"] for row in played.rows() if row["tenant"] == "acme")
    assert dict(of_acme) == prometheus.by("outcome", 'sum by (outcome) (k3gw_requests_total{tenant="acme"})')
    assert len(played.rows()) == prometheus.value('sum(k3gw_ledger_rows_total{outcome="written"})')
    refused = prometheus.now("sum by (tenant, reason) (k3gw_rejected_total)")
    assert [({"tenant": "small", "reason": "requests"}, 6.0)] == [(sample.labels, sample.last) for sample in refused]
    assert prometheus.value('sum(rate(k3gw_requests_total{tenant=""}[5m]))') > 0


def test_the_cache_hit_rate_is_the_engines_and_a_tenants_the_ledgers(played: Scene) -> None:
    prometheus, lookups = played.prometheus, played.lookups()
    told = [prometheus.value(f"sum(k3gw_engine_prefix_cache_{name}_tokens_total)") for name in ("hit", "queried")]
    assert list(lookups) == told
    found, looked_up = (now - before for now, before in zip(lookups, played.lookups_before, strict=True))
    assert found / looked_up == pytest.approx(
        prometheus.value(PANELS["operation: Prefix cache hits A"].filled(__rate_interval=played.second_round)), rel=0.03
    )

    def rate_of(tenant: str) -> float:
        rows = [row for row in played.rows()[played.num_before :] if row["tenant"] == tenant]
        return sum(row["cached_tokens"] for row in rows) / sum(row["input_tokens"] for row in rows)

    by_tenant = prometheus.by(
        "tenant", PANELS["tenants: Cache hits A"].filled(__rate_interval=played.second_round, tenant="acme|zeta")
    )
    assert {"acme": rate_of("acme"), "zeta": rate_of("zeta")} == pytest.approx(by_tenant, rel=0.03)


def test_acceptance_is_the_scripts(played: Scene) -> None:
    prometheus = played.prometheus
    assert TOKENS_PER_STEP == pytest.approx(
        prometheus.value(PANELS["operation: Tokens per step A"].filled(__rate_interval=played.second_round)), rel=0.01
    )
    by_position = prometheus.by(
        "position", PANELS["operation: Acceptance by position A"].filled(__rate_interval=played.second_round)
    )
    assert {str(position): float(position < ACCEPTED) for position in range(DRAFT)} == pytest.approx(by_position, rel=0.01)
    by_tenant = prometheus.by(
        "tenant", PANELS["tenants: Drafts accepted A"].filled(__rate_interval=played.second_round, tenant="acme|zeta")
    )
    assert dict.fromkeys(("acme", "zeta"), ACCEPTED / DRAFT) == pytest.approx(by_tenant, rel=0.01)
    drafted, accepted = (prometheus.value(f"sum(k3gw_spec_{name}_tokens_total)") for name in ("draft", "accepted"))
    assert (sum(row["draft_tokens"] for row in played.rows()), drafted * ACCEPTED / DRAFT) == (drafted, accepted)


def test_shares_and_budgets_are_the_tenants(played: Scene) -> None:
    prometheus = played.prometheus
    service = prometheus.by("tenant", "tenant:k3gw_service_share:ratio_rate5m")
    # The one request of `small` is in a rate only where a scrape came between its place in the queue and its service.
    contenders = {name: TENANTS[name].get("weight", 1) for name, share in service.items() if share > 0}
    assert {"acme", "zeta"} <= contenders.keys()
    shares = {name: pytest.approx(weight / sum(contenders.values())) for name, weight in contenders.items()}
    assert shares == prometheus.by("tenant", "tenant:k3gw_weight_share:ratio")
    assert pytest.approx(1) == sum(service.values())
    limit = TENANTS["acme"]["budget"]["tokens_per_day"]
    left = [
        1 - sum(row["input_tokens"] + row["output_tokens"] for row in ledger_rows(house.path, "acme")) / limit
        for house in played.houses
    ]
    assert {"acme": pytest.approx(min(left))} == prometheus.by("tenant", PANELS["tenants: Budget left A"].filled())


def test_seats_and_queues_are_as_they_were(played: Scene) -> None:
    prometheus = played.prometheus
    assert NUM_SEATS * len(played.houses) == prometheus.value("sum(k3gw_engine_seats)")
    (waiting,) = prometheus.course(PANELS["operation: Waiting A"].filled(), step_s=0.2)
    assert 2 == max(waiting.values)
    taken = prometheus.course("instance:k3gw_engine_seats_taken:ratio", step_s=0.2)
    assert [1, 1] == [max(sample.values) for sample in taken]
    assert all(
        prometheus.by("instance", PANELS[f"operation: Event-loop lag {ref}"].filled().replace("by (le)", "by (le, instance)"))
        for ref in "AB"
    )
