"""All PromQL that ships: of the dashboards as they are committed, of recording rules and of alerts; and what it reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from server.metrics import catalog

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards"
RULES = ROOT / "deploy" / "prometheus" / "rules"
PARTS = ("_bucket", "_sum", "_count")
_NAME = r"(?:up|k3gw_\w+|\w+:k3gw_\w+:\w+)"
_SELECTOR = re.compile(rf"(?<![\w:])({_NAME})(?![\w:])(\{{[^}}]*\}})?")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
_COMPARISON = re.compile(r"(?<![=!~<>])(==|!=|>=|<=|>|<)(?![=~])")


@dataclass(frozen=True)
class Selector:
    """One set of series that an expression reads. `matchers`: label, operator, value."""

    text: str
    name: str
    matchers: tuple[tuple[str, str, str], ...]

    def of(self, instance: str) -> str:
        """The same series of one instance, whatever a page's variables choose."""
        kept = [f'{label}{operator}"{value}"' for label, operator, value in self.matchers if not value.startswith("$")]
        kept.append(f'instance=~"{instance}"')
        return f"{self.name}{{{','.join(kept)}}}"

    @property
    def metric(self) -> catalog.Metric | None:
        """What the catalog has of that name."""
        for metric in catalog.CATALOG:
            parts = PARTS if metric.kind == "histogram" else ("",)
            if self.name in [f"{catalog.PREFIX}{metric.name}{part}" for part in parts]:
                return metric
        return None


@dataclass(frozen=True)
class Expression:
    """One expression: `where` it stands; for a panel's query the `legend` of its series, and which tenants are all of them there."""

    where: str
    text: str
    legend: str = ""
    all_tenants: str = ".*"

    def __str__(self) -> str:
        return self.where

    def filled(self, **variables: str) -> str:
        """With the page's variables, as Grafana would ask it."""
        text = self.text
        for name, value in {
            "__rate_interval": "5m",
            "top": "20",
            "instance": ".*",
            "model": ".*",
            "tenant": self.all_tenants,
            **variables,
        }.items():
            text = text.replace(f"${name}", value)
        assert "$" not in text, text
        return text

    @property
    def selectors(self) -> list[Selector]:
        """All that it reads."""
        found = _SELECTOR.finditer(self.text)
        return [Selector(one[0], one[1], tuple(_MATCHER.findall(one[2] or ""))) for one in found]

    @property
    def metrics(self) -> set[str]:
        """Names of the catalog's metrics that it reads."""
        return {selector.metric.name for selector in self.selectors if selector.metric is not None}

    @property
    def words(self) -> set[str]:
        """What is left of it beside selectors, numbers and ranges: functions, operators, and labels of groupings."""
        rest = re.sub(r"\[[^\]]*\]", " ", _SELECTOR.sub(" ", self.text)).replace("$top", " ")
        return set(re.findall(r"[A-Za-z_][\w:]*", rest))

    @property
    def grouped_by(self) -> set[str]:
        """Labels in `by (…)` and `on (…)`."""
        groupings = re.findall(r"\b(?:by|on) \(([^)]*)\)", self.text)
        return {label for grouping in groupings for label in re.findall(r"\w+", grouping)}

    def always_true(self) -> Expression:
        """An alert's condition, with comparisons that keep what they compare: it has an answer while its series are there."""
        text = re.sub(r"\babsent\(", "group(", self.text)
        pieces = re.split(r'("[^"]*"|\{[^}]*\})', text)
        pieces[::2] = [_COMPARISON.sub(r"\1 bool", piece) for piece in pieces[::2]]
        return Expression(self.where, "".join(pieces).replace("[10m:1m]", "[10m:1s]"))


def pages() -> dict[str, Any]:
    """The dashboards as they are committed, by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(DASHBOARDS.glob("*.json"))}


def variables(page: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a page lets its reader choose, by name."""
    return {variable["name"]: variable for variable in page["templating"]["list"]}


def panels(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those with queries."""
    return [panel for panel in page["panels"] if panel["type"] != "row"]


def of_dashboards() -> list[Expression]:
    """Every query of every panel."""
    return [
        Expression(
            f"{name}: {panel['title']} {target['refId']}",
            target["expr"],
            target["legendFormat"],
            variables(page)["tenant"]["allValue"],
        )
        for name, page in pages().items()
        for panel in panels(page)
        for target in panel["targets"]
    ]


def rules(kind: str) -> Iterator[dict[str, Any]]:
    """All rules with a `kind`: `record` or `alert`."""
    for path in sorted(RULES.glob("*.yml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            yield from (rule for rule in group["rules"] if kind in rule)


def of_rules(kind: str) -> list[Expression]:
    """What they compute, or look at."""
    return [Expression(rule[kind], rule["expr"]) for rule in rules(kind)]
