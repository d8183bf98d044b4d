"""PromQL over the metrics of the catalog.

Invariant: a query names only metrics that the catalog has, by labels that they have: anything else raises `ValueError` when the
dashboards are made, long before somebody sees "No data". Every selector is kept to what the page's variables choose.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from server.metrics import catalog

VARIABLES: Final = ("instance", "model", "tenant")
"""Labels that pages choose by; `instance` is Prometheus's own, of every series."""
WINDOW: Final = "$__rate_interval"


def series(name: str, *, part: str = "", **where: str) -> str:
    """The series of the catalog's metric `name`, or of a histogram's `part`: `_bucket`, `_sum`, `_count`.

    `where`: of a label, its value; behind `~` a pattern, behind `!~` one that must not match.
    """
    metric = _metric(name)
    if (metric.kind == "histogram") != bool(part):
        raise ValueError(f"`{name}` is a {metric.kind}: `{part}` does not fit")
    _check(name, metric.labels, where)
    _check_values(metric, where)
    return _selector(f"{catalog.PREFIX}{name}{part}", metric.labels, where)


def recorded(rule: str) -> str:
    """What a recording rule wrote, `level:metric:operations`; its level names the labels that it has, joined by `_`."""
    return _selector(rule, rule.partition(":")[0].split("_"), {})


def rate(name: str, by: Collection[str] = (), *, part: str = "", **where: str) -> str:
    """How much a counter grows in a second."""
    _check(name, (*_metric(name).labels, "instance", "le"), by)
    return f"{_over('sum', by)} (rate({series(name, part=part, **where)}[{WINDOW}]))"


def quantile(share: float, name: str, by: Collection[str] = (), **where: str) -> str:
    """Of a histogram's observations, the value that `share` of them are under."""
    return f"histogram_quantile({share}, {rate(name, ('le', *by), part='_bucket', **where)})"


def mean(name: str, by: Collection[str] = (), **where: str) -> str:
    """The mean of a histogram's observations."""
    return ratio(rate(name, by, part="_sum", **where), rate(name, by, part="_count", **where))


def gauge(how: str, name: str, by: Collection[str] = (), **where: str) -> str:
    """A gauge of several instances as one; `how`: `sum`, `count`, or `min` or `max` where all of them tell the same thing."""
    _check(name, (*_metric(name).labels, "instance"), by)
    return f"{_over(how, by)} ({series(name, **where)})"


def ratio(part: str, whole: str) -> str:
    """One by the other, label by label."""
    return f"{part} / {whole}"


def or_zero(query: str) -> str:
    """0 where there is nothing yet: no such request, or nobody who waits."""
    return f"({query} or vector(0))"


def share(part: str, whole: str) -> str:
    """Each of `part` by the one value of `whole`."""
    return f"{part} / on () group_left () {whole}"


def top(query: str) -> str:
    """As many as the page shows, the greatest at each moment."""
    return f"topk($top, {query})"


def _over(how: str, by: Collection[str]) -> str:
    return f"{how} by ({', '.join(by)})" if by else how


def _metric(name: str) -> catalog.Metric:
    metric = next((metric for metric in catalog.CATALOG if metric.name == name), None)
    if metric is None:
        raise ValueError(f"`{name}` is no metric of the catalog")
    return metric


def _check(name: str, labels: Collection[str], used: Collection[str]) -> None:
    unknown = [label for label in used if label not in labels]
    if unknown:
        raise ValueError(f"`{name}` has no label `{unknown[0]}`")


def _check_values(metric: catalog.Metric, where: dict[str, str]) -> None:
    """A closed set has the values that are looked for, and patterns are lists of them."""
    for label in metric.by:
        looked_for = where.get(label.name, "").lstrip("!~").split("|") if label.name in where and label.values else []
        unknown = [value for value in looked_for if value not in label.values]
        if unknown:
            raise ValueError(f"`{metric.name}` has no `{label.name}` of `{unknown[0]}`")


def _selector(name: str, labels: Collection[str], where: dict[str, str]) -> str:
    chosen = [
        label for label in VARIABLES if (label in labels or (label == "instance" and ":" not in name)) and label not in where
    ]
    matchers = [f'{label}=~"${label}"' for label in chosen]
    for label, value in where.items():
        sign = next((sign for sign in ("!~", "~") if value.startswith(sign)), "")
        operator = {"!~": "!~", "~": "=~", "": "="}[sign]
        matchers.append(f'{label}{operator}"{value.removeprefix(sign)}"')
    return f"{name}{{{','.join(matchers)}}}" if matchers else name
