"""A page: rows of panels below the variables that choose what they show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from grafana_foundation_sdk.builders import bargauge, dashboard, stat, table, timeseries
from grafana_foundation_sdk.models import dashboard as model

from deploy.grafana.panels import SOURCE
from deploy.grafana.queries import VARIABLES

Panel = timeseries.Panel | stat.Panel | bargauge.Panel | table.Panel
TAG: Final = "k3-gateway"
_EVERYTHING: Final = model.VariableOption(selected=True, text="All", value="$__all")
_FROM: Final = {"instance": "k3gw_engine_up", "model": "k3gw_requests_total", "tenant": "k3gw_requests_total"}
"""Of each variable, the metric whose label gives its values."""


def page(
    uid: str,
    title: str,
    meaning: str,
    rows: Sequence[tuple[str, Sequence[Panel]]],
    tops: Sequence[int] = (),
    *,
    with_nobody: bool = True,
) -> dashboard.Dashboard:
    """`tops`: how many of the greatest series plots may show, to choose from; none where they show all.

    `with_nobody`: requests without a valid key, which have no tenant, are among those of all tenants.
    """
    made = dashboard.Dashboard(title).uid(uid).description(meaning).tags([TAG]).editable().timezone("browser")
    made.time("now-1h", "now").refresh("30s").tooltip(model.DashboardCursorSync.CROSSHAIR)
    made.link(
        dashboard.DashboardLink("k3-gateway")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .include_vars(True)
        .keep_time(True)
    )
    made.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    all_values = {} if with_nobody else {"tenant": ".+"}
    for name in VARIABLES:
        query = (
            dashboard.QueryVariable(name)
            .label(name.capitalize())
            .query(f"label_values({_FROM[name]}, {name})")
            .datasource(SOURCE)
        )
        query.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.ALPHABETICAL_ASC)
        made.with_variable(query.multi(True).include_all(True).all_value(all_values.get(name, ".*")).current(_EVERYTHING))
    if tops:
        made.with_variable(_choice("top", "Show the top", tops))
    for name, panels in rows:
        made.with_row(dashboard.Row(name))
        for panel in panels:
            made.with_panel(panel)
    return _numbered(made)


def _choice(name: str, label: str, values: Sequence[int]) -> dashboard.CustomVariable:
    options = [model.VariableOption(selected=index == 0, text=str(value), value=str(value)) for index, value in enumerate(values)]
    return dashboard.CustomVariable(name).label(label).values(",".join(map(str, values))).options(options).current(options[0])


def _numbered(made: dashboard.Dashboard) -> dashboard.Dashboard:
    """With ids of their own for the panels: Grafana would give them such as it likes at each import."""
    panels: list[Any] = made.build().panels or []
    for number, panel in enumerate(panels, start=1):
        panel.id_val = number
    return made
