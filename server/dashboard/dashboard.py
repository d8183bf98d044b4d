"""What `/dashboard` shows of one gateway.

Role: beside the gateway, from which it only reads. Invariant: what nobody looks at costs one sample every two seconds.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import orjson

from server import __version__
from server.dashboard.history import INTERVAL_S, KEPT_S, History
from server.dashboard.parts import FIGURES, Elsewhere
from server.dashboard.points import COLUMNS
from server.dashboard.replica import status_of, whole_status
from server.dashboard.tenants import TenantTable, View
from server.gateway import Gateway


class Asked(msgspec.Struct, frozen=True):
    """What a page asks for; see `Dashboard.figures`."""

    epoch: str
    since: int
    view: View

    @property
    def encoded(self) -> bytes:
        """For `Dashboard.answer`."""
        return msgspec.json.encode(self)


_ASKED: Final = msgspec.json.Decoder(Asked)


class Dashboard:
    """`run` must run."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._started_s = gateway.clock.unix_ms() / 1000
        self.epoch = f"{gateway.clock.unix_ms():x}"
        self._elsewhere = Elsewhere(gateway)
        self.history = History(self._elsewhere.counts, gateway.clock)
        self.tenants = TenantTable(gateway, self._elsewhere)

    async def run(self) -> None:
        """Keep the history, until cancelled. Of several workers, the first keeps that of all."""
        others = self._gateway.others
        if others is None or others.index == 0:
            await self.history.run(self._elsewhere.look, self._look_at_tenants)

    async def answer(self, question: bytes) -> bytes:
        """The figures as JSON. `question`: epoch, since and view as an `Asked`, encoded."""
        others = self._gateway.others
        if others is not None and others.index:
            return b"".join(await others.ask(0, FIGURES, question))
        asked = _ASKED.decode(question)
        await self._elsewhere.look_at_tenants()
        return orjson.dumps(self.figures(asked.epoch, asked.since, asked.view, await whole_status(self._gateway)))

    async def _look_at_tenants(self) -> None:
        if self.tenants.is_due:
            await self._elsewhere.look_at_tenants()
            self.tenants.look()

    def figures(self, epoch: str, since: int, view: View, replica: dict[str, Any] | None = None) -> dict[str, Any]:
        """As JSON. `epoch` and `since`: what the page was told last, so that it is not told again; "" and 0 for all.

        `replica`: how it is, left out where this process is all of it. Points have their figures in the order of `columns`, the
        newest last.
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
            "seats": None if engine is None else engine.facts.seats * self._elsewhere.num_engines,
            "replica": replica or status_of(gateway),
            "columns": COLUMNS,
            "next": next_point,
            "points": points,
            "tenants": self.tenants.page(view),
        }
