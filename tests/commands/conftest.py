"""A command line over stores of both kinds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from server.commands import keys, tenants
from tests.store.conftest import postgres_server, store_url

__all__ = ["postgres_server", "store_url"]

Run = Callable[..., Result]


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Path:
    """A configuration whose store is empty."""
    path = tmp_path / "gateway.yaml"
    path.write_text(json.dumps({"storage": {"ledger_url": store_url}, "models": {"kimi-k3": {}}}))
    return path


@pytest.fixture
def run(config: Path) -> Run:
    """`run("keys", "list")`: what the command did."""
    app = typer.Typer()
    app.add_typer(keys.app, name="keys")
    app.add_typer(tenants.app, name="tenants")

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--config", str(config)])

    return run
