"""Stores to test with: a file of SQLite's and a database of a real PostgreSQL."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.postgres import Postgres, postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url", "store_url"]


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'var' / 'gateway.db'}"
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.new_database()


@pytest.fixture
def own_postgres(postgres_server: Postgres) -> Iterator[Postgres]:
    """A server that the test may stop."""
    folder = Path(tempfile.mkdtemp(prefix="k3gw-postgres-"))
    server = Postgres(folder)
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)
