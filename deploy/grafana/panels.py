"""The kinds of panel that the dashboards have, each with all that a reader needs: unit, thresholds, and what it means.

Invariant: every query asks the data source that the page's variable chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
TOKENS_PER_S: Final = "si:tok/s"
GREEN, YELLOW, RED = "green", "orange", "red"
_UNKNOWN: Final = model.SpecialValueMap(
    model.DashboardSpecialValueMapOptions(
        match=model.SpecialValueMatch.NULL_AND_NAN, result=model.ValueMappingResult(text="–", color="text")
    )
)
"""A share of nothing (0 / 0) is neither good nor bad: without this it would be a `NaN` in the colour of the lowest threshold."""

_P = TypeVar("_P", timeseries.Panel, stat.Panel, bargauge.Panel, table.Panel)


@dataclass(frozen=True, slots=True)
class Line:
    """One query, and what its series are called."""

    query: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a value is no longer fine. `bad` below `poor`: less is worse."""

    poor: float | None = None
    bad: float | None = None

    def steps(self) -> list[model.Threshold]:
        """From the lowest up; the first has no value."""
        if self.bad is None or self.poor is None:
            rest = [(self.poor, YELLOW)] if self.poor is not None else [(self.bad, RED)] if self.bad is not None else []
            return _steps(GREEN, *rest)
        if self.bad < self.poor:
            return _steps(RED, (self.bad, YELLOW), (self.poor, GREEN))
        return _steps(GREEN, (self.poor, YELLOW), (self.bad, RED))


FINE: Final = Limits()
"""For what has no limit of its own."""


def graph(
    title: str, meaning: str, unit: str, *lines: Line, limits: Limits = FINE, stacked: bool = False, most: float | None = None
) -> timeseries.Panel:
    """Lines over time; limits are drawn where there are any. `most`: the end of the axis."""
    panel = _dressed(timeseries.Panel(), title, meaning, unit, limits, lines).span(8).height(8).min(0)
    legend = common.VizLegendOptions().display_mode(kinds.LegendDisplayMode.TABLE).placement(kinds.LegendPlacement.BOTTOM)
    panel.legend(legend.show_legend(True).calcs(["lastNotNull", "max"]).sort_by("Last *").sort_desc(True))
    panel.tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING))
    panel.fill_opacity(30 if stacked else 5).line_width(1).show_points(kinds.VisibilityMode.NEVER)
    panel.color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC))
    if stacked:
        panel.stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL).group("A"))
    if limits != FINE:
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(kinds.GraphTresholdsStyleMode.DASHED))
    return panel if most is None else panel.max(most)


def figure(title: str, meaning: str, unit: str, query: str, limits: Limits = FINE, decimals: int | None = None) -> stat.Panel:
    """One number as it is now, with its course behind it."""
    panel = _dressed(stat.Panel(), title, meaning, unit, limits, [Line(query, title)]).span(4).height(4)
    panel.reduce_options(_last()).graph_mode(kinds.BigValueGraphMode.AREA).color_mode(kinds.BigValueColorMode.VALUE)
    return panel if decimals is None else panel.decimals(decimals)


def bars(title: str, meaning: str, unit: str, line: Line, *, limits: Limits = FINE, most: float | None = None) -> bargauge.Panel:
    """One bar for each series, as it is now."""
    panel = _dressed(bargauge.Panel(), title, meaning, unit, limits, [line], instant=True).span(8).height(8).min(0)
    panel.reduce_options(_last()).orientation(kinds.VizOrientation.HORIZONTAL).display_mode(kinds.BarGaugeDisplayMode.BASIC)
    return panel if most is None else panel.max(most)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: what it is called, its unit, and the query that fills it."""

    title: str
    unit: str
    query: str
    limits: Limits = FINE


def sheet(title: str, meaning: str, key: str, *columns: Column, hidden: Sequence[str] = ()) -> table.Panel:
    """A row for each value of the label `key`, as things are now; two columns at least. `hidden`: what queries bring along."""
    lines = [Line(column.query, column.title) for column in columns]
    panel = _dressed(table.Panel(), title, meaning, "short", FINE, lines, instant=True, format_as=PromQueryFormat.TABLE)
    panel.span(24).height(10)
    names = {f"Value #{_ref(index)}": column.title for index, column in enumerate(columns)}
    panel.with_transformation(model.DataTransformerConfig("joinByField", options={"byField": key, "mode": "outer"}))
    excluded = dict.fromkeys(hidden, True)
    excluded |= {f"Time {number}": True for number in range(1, len(columns) + 1)} | {"Time": True}
    options = {"excludeByName": excluded, "renameByName": {key: key.capitalize(), **names}, "indexByName": {}}
    panel.with_transformation(model.DataTransformerConfig("organize", options=options))
    for column in columns:
        properties = [
            model.DynamicConfigValue("unit", column.unit),
            model.DynamicConfigValue(
                "thresholds", {"mode": "absolute", "steps": [step.to_json() for step in column.limits.steps()]}
            ),
            model.DynamicConfigValue("custom.cellOptions", {"type": "color-text" if column.limits != FINE else "auto"}),
        ]
        panel.override_by_name(column.title, properties)
    return panel


def _dressed(
    panel: _P,
    title: str,
    meaning: str,
    unit: str,
    limits: Limits,
    lines: Sequence[Line],
    *,
    instant: bool = False,
    format_as: PromQueryFormat = PromQueryFormat.TIME_SERIES,
) -> _P:
    panel.title(title).description(meaning).unit(unit).no_value("none").mappings([_UNKNOWN]).datasource(SOURCE)
    panel.thresholds(dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(limits.steps()))
    for index, line in enumerate(lines):
        query = prometheus.Dataquery().ref_id(_ref(index)).expr(line.query).legend_format(line.legend).datasource(SOURCE)
        query.format(format_as)
        panel.with_target(query.instant() if instant else query.range())
    return panel


def _steps(lowest: str, *rest: tuple[Any, str]) -> list[model.Threshold]:
    return [model.Threshold(None, lowest), *(model.Threshold(value, color) for value, color in rest)]


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False)


def _ref(index: int) -> str:
    return chr(ord("A") + index)
