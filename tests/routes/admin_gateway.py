"""A gateway over a store, and what an operator and its tenants ask of it, without a socket."""

from __future__ import annotations

import tempfile
from typing import Any

import httpx

from server.app import create_app
from server.clock import ManualClock
from server.dashboard.dashboard import Dashboard
from server.engine.base import Engine
from server.engine.scripted.engine import ScriptedEngine
from server.engine.scripted.rules import Script
from server.gateway import Gateway
from server.settings import Settings
from server.store.database import Database
from server.tenancy.registry import Registry
from server.tenancy.watch import Watch
from server.vocabulary.byte import ByteVocabulary

ADMIN = "the-admin-key-of-tests"
MODELS = {"kimi-k3": {"aliases": ["default"]}, "small": {}}


class AdminGateway:
    """`database` None: the store is not up."""

    def __init__(self, database: Database | None, **tenancy: Any) -> None:
        self.clock = ManualClock()
        self._spool = tempfile.TemporaryDirectory()
        values = {
            "engine": {"kind": "scripted"},
            "models": MODELS,
            "tenancy": {"admin_key": ADMIN, **tenancy},
            "storage": {"ledger_url": f"sqlite:///{self._spool.name}/gateway.db", "spool_path": self._spool.name},
        }
        app = create_app(Settings.model_validate(values), self._no_engine, clock=self.clock)
        self.gateway: Gateway = app.state.gateway
        self.dashboard: Dashboard = app.state.dashboard
        if database is not None:
            storage = self.gateway.storage
            storage.database, storage.registry = database, Registry(database, self.clock)
            storage.watch = Watch(storage.registry, storage.keys, self.clock)
            storage.opened.set()
        self.gateway.open(ScriptedEngine(ByteVocabulary(), Script()), b"secret")
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")

    async def _no_engine(self) -> Engine:
        raise AssertionError("no lifespan runs")

    async def close(self) -> None:
        await self._client.aclose()
        self.gateway.storage.ledger.close()
        self._spool.cleanup()

    async def ask(self, method: str, path: str, json: Any = None, *, key: str = ADMIN, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return await self._client.request(method, path, headers=headers, **({} if json is None else {"json": json}), **more)

    async def ok(self, method: str, path: str, json: Any = None, **more: Any) -> dict[str, Any]:
        """The answer's JSON, of an answer that is no error."""
        response = await self.ask(method, path, json, **more)
        assert response.is_success, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def error(self, method: str, path: str, json: Any = None, **more: Any) -> tuple[int, str, str | None]:
        """Status, message and `param` of an error."""
        response = await self.ask(method, path, json, **more)
        assert set(response.json()) == {"error"}, response.text
        error = response.json()["error"]
        return response.status_code, error["message"], error["param"]

    async def opens(self, secret: str) -> bool:
        return (await self.ask("GET", "/v1/models", key=secret)).status_code == 200
