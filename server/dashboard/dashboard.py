"""What `/dashboard` shows of one gateway.

Role: beside the gateway, from which it only reads. Invariant: what nobody looks at costs one sample every two seconds.
"""

from __future__ import annotations

from typing import Any

from server import __version__
from server.dashboard.counts import counts_of
from server.dashboard.history import INTERVAL_S, KEPT_S, History
from server.dashboard.points import COLUMNS
from server.dashboard.replica import status_of
from server.dashboard.tenants import TenantTable, View
from server.gateway import Gateway


class Dashboard:
    """`run` must run."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._started_s = gateway.clock.unix_ms() / 1000
        self.epoch = f"{gateway.clock.unix_ms():x}"
        self.history = History(lambda: counts_of(gateway), gateway.clock)
        self.tenants = TenantTable(gateway)

    async def run(self) -> None:
        """Keep the history, until cancelled."""
        await self.history.run(self.tenants.look)

    def figures(self, epoch: str, since: int, view: View) -> dict[str, Any]:
        """As JSON. `epoch` and `since`: what the page was told last, so that it is not told again; "" and 0 for all.

        Points have their figures in the order of `columns`, the newest last.
        """
        gateway, engine = self._gateway, self._gateway.engine
        next_point, points = self.history.since(since if epoch == self.epoch else 0)
        settings = gateway.settings.engine
        return {
            "version": __version__,
            "engine": settings.kind if settings.kind == "scripted" else settings.profile,
            "models": [model.name for model in gateway.models.models],
            "epoch": self.epoch,
            "started_unix_s": self._started_s,
            "now_unix_s": gateway.clock.unix_ms() / 1000,
            "interval_s": INTERVAL_S,
            "kept_s": KEPT_S,
            "seats": None if engine is None else engine.facts.seats,
            "replica": status_of(gateway),
            "columns": COLUMNS,
            "next": next_point,
            "points": points,
            "tenants": self.tenants.page(view),
        }
