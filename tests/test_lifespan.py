"""From start to stop: what fails beside the requests ends the gateway, and in order."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from server import logs
from server.app import create_app
from server.engine.base import Engine
from server.engine.profiles import ProfileError
from server.engine.scripted.engine import ScriptedEngine
from server.errors import EngineDeadError
from server.gateway import Gateway
from server.record import GenerationRecord
from server.serving import exit_code
from server.settings import Settings
from server.usage import ledger as ledger_module
from server.vocabulary.byte import ByteVocabulary
from tests.conftest import LiveGateway


def test_background_work_that_fails_ends_the_gateway_in_order() -> None:
    gateway, has_failed = LiveGateway(lambda: ScriptedEngine(ByteVocabulary())), threading.Event()

    async def fails() -> None:
        await gateway.gateway.opened.wait()
        raise OSError("the disk is gone")

    gateway.gateway.background.append(fails)
    gateway.gateway.on_failure = has_failed.set
    gateway.start()
    try:
        assert has_failed.wait(10)
        assert isinstance(gateway.gateway.failure, OSError)
        assert httpx.get(f"{gateway.url}/ready").status_code == 200, "what is under way needs the engine until it has ended"
    finally:
        gateway.stop()


async def test_what_ends_with_the_gateway_and_its_engine_is_in_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "GATHER_S", 3600.0)  # rows go to the database at the end, or not at all
    storage = {"ledger_url": f"sqlite:///{tmp_path / 'gateway.db'}", "spool_path": str(tmp_path / "spool")}

    class LastWords(ScriptedEngine):
        async def close(self) -> None:
            """Takes a while, and a request ends with it."""
            await asyncio.sleep(0.2)
            gateway.ended(record("with the engine"))
            await super().close()

    async def open_engine() -> Engine:
        return LastWords(ByteVocabulary())

    def record(request_id: str) -> GenerationRecord:
        gateway.started(found := GenerationRecord(request_id, "acme", "kimi-k3", arrived_s=0.0))
        return found

    app = create_app(Settings.model_validate({"engine": {"kind": "scripted"}, "storage": storage}), open_engine)
    gateway: Gateway = app.state.gateway
    async with app.router.lifespan_context(app):
        async with asyncio.timeout(20):
            await gateway.opened.wait()
        gateway.ended(record("before"))

    with closing(sqlite3.connect(tmp_path / "gateway.db")) as connection:
        found = [request_id for (request_id,) in connection.execute("SELECT request_id FROM ledger ORDER BY request_id")]
    assert ["before", "with the engine"] == found
    assert 0 == gateway.storage.ledger.num_pending


@pytest.mark.parametrize(
    ("error", "code", "is_traced"),
    [
        (ProfileError("engine.overrides.a: is none"), 2, False),
        (EngineDeadError("no core"), 1, False),
        (OSError("no disk"), 1, True),
    ],
)
async def test_an_engine_that_can_not_be_opened_ends_the_gateway(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception, code: int, is_traced: bool
) -> None:
    """A mistake in the settings with 2 and in one line: no supervisor should start it again."""

    async def open_engine() -> Engine:
        await gateway.storage.opened.wait()
        raise error

    storage = {"ledger_url": f"sqlite:///{tmp_path / 'gateway.db'}", "spool_path": str(tmp_path / "spool")}
    settings = Settings.model_validate({"engine": {"kind": "scripted"}, "storage": storage})
    logs.configure(settings.log)
    app = create_app(settings, open_engine)
    gateway: Gateway = app.state.gateway
    has_failed = asyncio.Event()
    gateway.on_failure = has_failed.set
    async with app.router.lifespan_context(app), asyncio.timeout(20):
        await has_failed.wait()

    said = capsys.readouterr().err
    assert (code, is_traced) == (exit_code(gateway.failure), "Traceback" in said)
    assert str(error) in said
