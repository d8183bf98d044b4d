"""Configuration, rules and alerts as Prometheus's own tool judges them; each alert fires where it should, and has its runbook."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.expressions import ROOT, rules
from tests.services.prometheus import SHIPPED, needs

RUNBOOKS = ROOT / "docs" / "operations.md"
ALERTS = list(rules("alert"))
RULE_TESTS = sorted((SHIPPED / "tests").glob("*.yml"))


def promtool(*arguments: str) -> None:
    done = subprocess.run([needs("promtool"), *arguments], cwd=SHIPPED, capture_output=True, text=True, timeout=300)
    assert 0 == done.returncode, done.stdout + done.stderr


def cases() -> list[dict[str, Any]]:
    """Every expectation of every rule test."""
    texts = [path.read_text(encoding="utf-8") for path in RULE_TESTS]
    groups = [group for text in texts for group in yaml.safe_load(text)["tests"]]
    return [{**case, "group": group["name"]} for group in groups for case in group["alert_rule_test"]]


def anchors(markdown: str) -> list[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*)$", markdown, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_the_configuration_is_valid() -> None:
    promtool("check", "config", "prometheus.yml")


def test_the_commented_examples_are_valid_too(tmp_path: Path) -> None:
    """What is behind `# ` at the start of a line is YAML that may be used as it stands."""
    text = (SHIPPED / "prometheus.yml").read_text(encoding="utf-8").replace("rules/", f"{SHIPPED}/rules/")
    code = re.compile(r"^( *)# ( *(?:[a-z_]+:|- ).*)$", re.MULTILINE)
    used = code.sub(r"\1\2", text).replace("job_name: k3-gateway\n    scheme", "job_name: k3-gateway-elsewhere\n    scheme")
    assert {"alerting", "scrape_configs", "global", "rule_files"} == set(yaml.safe_load(used))
    assert 2 == len(yaml.safe_load(used)["scrape_configs"])
    (tmp_path / "prometheus.yml").write_text(used.replace("/etc/prometheus/k3-gateway.key", f"{tmp_path}/key"))
    (tmp_path / "key").write_text("key")
    promtool("check", "config", str(tmp_path / "prometheus.yml"))


def test_the_rules_are_valid() -> None:
    promtool("check", "rules", *(str(path) for path in sorted((SHIPPED / "rules").glob("*.yml"))))


@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.stem)
def test_alerts_fire_where_they_should_and_nowhere_else(path: Path) -> None:
    promtool("test", "rules", str(path))


@pytest.mark.parametrize("name", [alert["alert"] for alert in ALERTS])
def test_an_alert_has_a_test_that_fires_it_and_one_that_does_not(name: str) -> None:
    own = [case for case in cases() if case["alertname"] == name]
    fires = {case["group"] for case in own if case["exp_alerts"]}
    assert fires
    assert {case["group"] for case in own} - fires
    assert all(name in case["group"] for case in own)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_how_bad_it_is_what_is_so_and_where_to_read_on(alert: Any) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    says = alert["annotations"]
    assert {"summary", "description", "runbook_url"} == set(says)
    assert "{{ $value" in says["description"]
    page, _, anchor = says["runbook_url"].partition("#")
    assert (ROOT / page, alert["alert"].lower()) == (RUNBOOKS, anchor)
    assert 1 == anchors(RUNBOOKS.read_text(encoding="utf-8")).count(anchor)


def test_no_runbook_is_of_an_alert_that_is_no_more() -> None:
    written = {anchor for anchor in anchors(RUNBOOKS.read_text(encoding="utf-8")) if anchor.startswith("k3gateway")}
    assert written == {alert["alert"].lower() for alert in ALERTS}


def test_recorded_names_tell_their_labels() -> None:
    """A level is the labels that an expression keeps; dashboards rely on it."""
    for rule in rules("record"):
        level, metric, _ = rule["record"].split(":")
        groupings = set(re.findall(r"\bby \(([^)]*)\)", rule["expr"]))
        assert groupings <= {level.replace("_", ", ")}, rule["record"]
        assert metric.startswith("k3gw_")
