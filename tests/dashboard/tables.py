"""A gateway that nothing runs on, its tenants, and requests that have ended or not."""

from __future__ import annotations

import tempfile
from typing import Any

from server.app import create_app
from server.clock import ManualClock
from server.context import Tenant
from server.dashboard.dashboard import Dashboard
from server.dashboard.tenants import View
from server.engine.base import Engine
from server.engine.scripted.engine import ScriptedEngine
from server.engine.scripted.rules import Script
from server.gateway import Gateway
from server.record import GenerationRecord
from server.settings import Settings
from server.tenancy.snapshot import Snapshot
from server.vocabulary.byte import ByteVocabulary


class Still:
    """Its clock moves only when told to."""

    def __init__(self, *tenants: Tenant, seats: int = 4, **settings: Any) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        storage = {"ledger_url": f"sqlite:///{self._folder.name}/gateway.db", "spool_path": self._folder.name}
        values = {"engine": {"kind": "scripted"}, "storage": storage, **settings}
        app = create_app(Settings.model_validate(values), self._no_engine, clock=self.clock)
        self.gateway: Gateway = app.state.gateway
        self.gateway.open(ScriptedEngine(ByteVocabulary(), Script(), seats=seats), b"secret")
        self.gateway.storage.keys.load(Snapshot(tenants={tenant.name: tenant for tenant in tenants}))
        self.dashboard: Dashboard = app.state.dashboard

    async def _no_engine(self) -> Engine:
        raise AssertionError("no lifespan runs")

    def close(self) -> None:
        self.gateway.storage.ledger.close()
        self._folder.cleanup()

    def go(self, seconds: float) -> None:
        """Let time pass, with all that is done in it."""
        for _ in range(round(seconds / 2)):
            self.clock.advance(2)
            self.dashboard.history.sample()
            self.dashboard.tenants.look()

    def begin(self, tenant: str, num_input: int = 0, num_output: int = 0, num_cached: int = 0) -> GenerationRecord:
        record = GenerationRecord("r", tenant, "kimi-k3", arrived_s=self.clock.monotonic_s())
        record.num_input_tokens, record.num_output_tokens, record.num_cached_tokens = num_input, num_output, num_cached
        self.gateway.started(record)
        return record

    def end(self, record: GenerationRecord, outcome: str = "finished") -> None:
        record.outcome, record.ended_s = outcome, self.clock.monotonic_s()
        self.gateway.ended(record)

    def refuse(self, tenant: str, reason: str) -> None:
        record = GenerationRecord("r", tenant, "kimi-k3", arrived_s=0.0, outcome="limited", rejected_by=reason, api="")
        self.gateway.refused(record)

    def table(self, **view: Any) -> dict[str, Any]:
        return self.dashboard.tenants.page(View(**view))

    def row(self, tenant: str) -> dict[str, Any]:
        found = [row for row in self.table(num_rows=100)["rows"] if row["name"] == tenant]
        assert 1 == len(found)
        row: dict[str, Any] = found[0]
        return row

    def names(self, **view: Any) -> list[str]:
        return [row["name"] for row in self.table(**view)["rows"]]
