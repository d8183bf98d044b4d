"""The scrapes of several processes of one gateway, made into one.

Role: for a gateway with several workers; works on the text of each one's scrape, so that whatever one says is in the whole.
Invariant: counters and histograms add up, gauges follow the rule of the catalog; workers are added in the same order always, so
that a sum of the same numbers is the same to the last bit: one that seemed to go back would count as a restart.
Must not: read more than this gateway's own text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from server.metrics.catalog import CATALOG, PREFIX
from server.metrics.families import PIECE_SERIES

_ENGINE: Final = re.compile(r'[{,]engine="([^"]*)"')
_RULES: Final[Mapping[str, str]] = {PREFIX + metric.name: metric.over_workers for metric in CATALOG}
_MERGE: Final[Mapping[str, Callable[[float, float], float]]] = {
    "sum": lambda before, value: before + value,
    "max": max,
    "min": min,
}


@dataclass(slots=True)
class _Family:
    """One metric. `rule`: of the catalog, or `newest` for gauges that are not ours. `series`: name and labels as written."""

    head: str
    rule: str
    series: dict[str, float] = field(default_factory=dict)
    told_s: dict[str, float] = field(default_factory=dict)


class MergedScrape:
    """Add the text of each worker, in whole lines, worker by worker; then read `pieces`."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._family: _Family | None = None
        self._steps_s: Mapping[str, float] = {}

    def begin(self, steps_s: Mapping[str, float]) -> None:
        """The text of another worker follows. `steps_s`: index of an engine -> when it last heard of it, monotonic."""
        self._family = None
        self._steps_s = steps_s

    def add(self, text: str) -> None:
        """Some lines more of it."""
        for line in text.split("\n"):  # which alone ends a line here, and not all that Unicode has
            if line.startswith("#"):
                self._open(line)
            elif line:
                name, _, number = line.rpartition(" ")
                self._count(name, float(number))

    def pieces(self) -> Iterator[str]:
        """The text of the whole, in pieces."""
        for family in self._families.values():
            yield family.head
            lines: list[str] = []
            for name, value in family.series.items():
                lines.append(f"{name} {_text(value)}\n")
                if len(lines) == PIECE_SERIES:
                    yield "".join(lines)
                    lines.clear()
            yield "".join(lines)

    def _open(self, line: str) -> None:
        _, what, name, rest = f"{line} ".split(" ", 3)
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = _Family("", _RULES.get(name, "sum"))
        if family.head.count("\n") < 2 and f"# {what} " not in family.head:
            family.head += f"{line}\n"
        if what == "TYPE" and rest.strip() == "gauge" and name not in _RULES:
            family.rule = "newest"
        self._family = family

    def _count(self, name: str, value: float) -> None:
        family = self._family
        assert family is not None, "a line of no metric"
        before = family.series.get(name)
        if family.rule == "newest":
            found = _ENGINE.search(name)
            told_s = self._steps_s.get(found[1] if found else "", max(self._steps_s.values(), default=0.0))
            if before is None or told_s > family.told_s[name]:
                family.series[name], family.told_s[name] = value, told_s
        else:
            family.series[name] = value if before is None else _MERGE[family.rule](before, value)


def _text(value: float) -> str:
    """As the format has it."""
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text := repr(value), text)
