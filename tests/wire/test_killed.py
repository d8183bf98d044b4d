"""A gateway that is killed while its database takes no rows: after the next start, each request that had ended is there once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.store.database import Database
from server.usage.row import LedgerRow
from tests.services.gateway import GatewayProcess, running
from tests.services.postgres import Postgres, postgres_server
from tests.store.conftest import own_postgres
from tests.usage.conftest import rows_in
from tests.wire.customers import END, Customer, read_answer, wait_for

__all__ = ["own_postgres", "postgres_server"]

SCRIPT = [
    {"when": {"contains": "hold"}, "reply": [{"text": "Hello"}, "hang"]},
    {"when": {"contains": "break"}, "reply": [{"text": "Hello"}, "error"]},
    {"reply": [{"text": "The answer is yes."}, *END]},
]
NUM_BEFORE, NUM_MEANWHILE = 3, 24


class Store:
    """A database that can be made unusable."""

    url: str
    is_found_away = False
    """Whether a gateway that starts knows it at once."""

    def rows(self) -> list[LedgerRow]:
        async def read() -> list[LedgerRow]:
            database = await Database.open(self.url)
            try:
                return await rows_in(database)
            finally:
                await database.close()

        return asyncio.run(read())

    def unusable(self) -> Any:
        """A block in which it is."""
        raise NotImplementedError


class LockedFile(Store):
    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"sqlite:///{path}"

    @contextmanager
    def unusable(self) -> Iterator[None]:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            yield
            connection.execute("COMMIT")


class StoppedServer(Store):
    is_found_away = True

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self.url = postgres.new_database()

    @contextmanager
    def unusable(self) -> Iterator[None]:
        self._postgres.stop()
        try:
            yield
        finally:
            self._postgres.start()


@pytest.fixture(params=["a locked file", "a stopped server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "a locked file":
        return LockedFile(tmp_path / "gateway.db")
    return StoppedServer(request.getfixturevalue("own_postgres"))


NUM_BROKEN = len("Hello")
"""Tokens of an answer that breaks."""


def ask(customer: Customer, name: str, text: str, *, stream: bool) -> tuple[str, int]:
    """The request's name, and how many tokens its answer had by what the client was told."""
    body = customer.body(text, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
    headers = {**customer.headers, "x-request-id": name}
    answer = read_answer(customer.http.post(f"{customer.url}/v1/chat/completions", json=body, headers=headers))
    if text == "break":
        assert answer.error["code"] == "engine_error"
        return name, NUM_BROKEN
    assert answer.status == 200
    usage = (answer.frames[-1] if stream else answer.body)["usage"]
    return name, usage["completion_tokens"]


def test_what_had_ended_is_there_once(store: Store, tmp_path: Path) -> None:
    storage = {"ledger_url": store.url, "spool_path": str(tmp_path / "spool")}
    gateway = GatewayProcess(tmp_path / "gateway", SCRIPT, storage=storage, tenants={"acme": {}})
    with running(gateway), httpx.Client(timeout=60) as http:
        customer = Customer(http, gateway.url, "acme", gateway.key_of(http, "acme"))
        ended = dict(ask(customer, f"before-{number}", "hi", stream=False) for number in range(NUM_BEFORE))
        wait_for(lambda: len(store.rows()) == NUM_BEFORE)
        with store.unusable():
            with customer.stream("hold"), ThreadPoolExecutor(8) as workers:
                wanted = [(f"meanwhile-{number}", "break" if number % 4 == 3 else "hi") for number in range(NUM_MEANWHILE)]
                asked = [workers.submit(ask, customer, *one, stream=number % 8 < 4) for number, one in enumerate(wanted)]
                ended |= dict(one.result() for one in asked)
                gateway.kill()
            gateway.start(waits=False)
            if store.is_found_away:
                wait_for(lambda: "store_away" in gateway.log, timeout_s=60)
        gateway.wait_ready()
        rows = wait_for(store.rows, lambda rows: len(rows) >= len(ended))

    assert len(ended) == NUM_BEFORE + NUM_MEANWHILE
    assert sorted((row.request_id, row.output_tokens) for row in rows) == sorted(ended.items())
    assert all((row.tenant, row.input_tokens > 0) == ("acme", True) for row in rows)
    assert {(row.outcome, row.request_id in {name for name, text in wanted if text == "break"}) for row in rows} == {
        ("finished", False),
        ("error", True),
    }
