"""The series of a metric, as plain numbers, and the text of a scrape made of them.

Role: what `Recorder` counts in. Own text, because the client library's takes 5 to 10 times as long for each series, in one piece:
with 200 tenants that is a tenth of a second in which no stream goes on.
Invariant: one series is read and written in one step, so a histogram's buckets, sum and count belong together.
Source: the Prometheus text format 0.0.4, written as `prometheus_client` does: labels in order, whole numbers with `.0`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from server.metrics.catalog import PREFIX, Metric

Key = tuple[str, ...]
PIECE_SERIES: Final = 500
"""So many lines are written at once, before others have their turn: a fraction of a millisecond."""

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def head_of(metric: Metric) -> str:
    """The lines that say what a metric is."""
    meaning = metric.meaning.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {PREFIX}{metric.name} {meaning}\n# TYPE {PREFIX}{metric.name} {metric.kind}\n"


def labels_of(names: Sequence[str], values: Iterable[str]) -> str:
    """`a="x",b="y"`, in the order of the names."""
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in sorted(zip(names, values, strict=True)))


def single(metric: Metric, value: float) -> str:
    """All of a metric without labels."""
    return f"{head_of(metric)}{PREFIX}{metric.name} {_number(value)}\n"


def labelled(metric: Metric, values: Mapping[str, float]) -> str:
    """All of a metric with one label, whose `values` these are."""
    name = PREFIX + metric.name
    lines = [f"{name}{{{labels_of(metric.labels, (label,))}}} {_number(value)}\n" for label, value in values.items()]
    return head_of(metric) + "".join(lines)


def _number(value: float) -> str:
    return repr(float(value))


class Numbers:
    """A counter or a gauge: labels' values -> number. One without labels has the empty key, and is there from the start.

    `by_last`: the last label's values -> the sum over all others, kept at hand, so that who wants no more need not add up.
    """

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.values: dict[Key, float] = {} if metric.by else {(): 0.0}
        self.by_last: dict[str, float] = {}
        self._heads: dict[Key, str] = {}

    def add(self, key: Key, amount: float = 1) -> None:
        """Count."""
        self.values[key] = self.values.get(key, 0.0) + amount
        if key:
            self.by_last[key[-1]] = self.by_last.get(key[-1], 0.0) + amount

    def put(self, key: Key, value: float) -> None:
        """Set."""
        self.add(key, value - self.values.get(key, 0.0))

    def pieces(self) -> Iterator[str]:
        """The text, in pieces."""
        yield head_of(self.metric)
        lines: list[str] = []
        heads = self._heads
        for key, value in list(self.values.items()):
            head = heads.get(key)
            if head is None:
                head = heads[key] = self._head(key)
            lines.append(f"{head}{value!r}\n")
            if len(lines) == PIECE_SERIES:
                yield "".join(lines)
                lines.clear()
        yield "".join(lines)

    def _head(self, key: Key) -> str:
        name = PREFIX + self.metric.name
        return f"{name}{{{labels_of(self.metric.labels, key)}}} " if key else f"{name} "


class Series:
    """One histogram's numbers. `counts`, shape (bounds + 1,): how many fell into each bucket, not those below it.

    `text`: as it was last written, None where it has changed since: most tenants do nothing between two scrapes.
    """

    __slots__ = ("counts", "labels", "sum", "text")

    def __init__(self, num_buckets: int, labels: str) -> None:
        self.counts = [0] * num_buckets
        self.sum = 0.0
        self.labels = labels
        self.text: str | None = None


class Histogram:
    """Labels' values -> series. `whole`: all of them together, kept at hand as in `Numbers`."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.series: dict[Key, Series] = {}
        self.whole = Series(len(metric.buckets) + 1, "")
        self._bounds = metric.buckets
        self._template = _template(metric)
        if not metric.by:
            self._of(())

    def observe(self, key: Key, value: float) -> None:
        """Count one value."""
        bucket = bisect_left(self._bounds, value)
        for series in (self._of(key), self.whole):
            series.counts[bucket] += 1
            series.sum += value
            series.text = None

    def observe_many(self, key: Key, counts: Sequence[int], total: float) -> None:
        """Count values that are sorted by these bounds already, and whose sum is `total`."""
        for series in (self._of(key), self.whole):
            for index, count in enumerate(counts):
                series.counts[index] += count
            series.sum += total
            series.text = None

    def pieces(self) -> Iterator[str]:
        """The text, in pieces."""
        yield head_of(self.metric)
        texts: list[str] = []
        most = max(1, PIECE_SERIES // (len(self._bounds) + 3))
        for series in list(self.series.values()):
            if series.text is None:
                below = tuple(accumulate(series.counts))
                series.text = self._template.replace("\0", series.labels) % (*below, series.sum, below[-1])
            texts.append(series.text)
            if len(texts) == most:
                yield "".join(texts)
                texts.clear()
        yield "".join(texts)

    def _of(self, key: Key) -> Series:
        series = self.series.get(key)
        if series is None:
            labels = labels_of(self.metric.labels, key).replace("%", "%%")
            series = self.series[key] = Series(len(self._bounds) + 1, labels)
        return series


def _template(metric: Metric) -> str:
    """The lines of one series, for `%`: buckets, each with those below it, sum and count. `\\0` stands for its labels."""
    name = PREFIX + metric.name
    comma, alone = (",", "{\0}") if metric.by else ("", "")
    bounds = [*(repr(float(bound)) for bound in metric.buckets), "+Inf"]
    lines = [f'{name}_bucket{{le="{bound}"{comma}\0}} %d.0\n' for bound in bounds]
    return "".join(lines) + f"{name}_sum{alone} %r\n{name}_count{alone} %d.0\n"
