"""`k3-gateway usage`."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from server.clock import SystemClock
from server.commands.usage import usage
from server.sections import TenantSettings
from server.store.database import Database
from server.tenancy.registry import Registry
from server.usage.row import LedgerRow
from server.usage.table import LedgerTable

NOW_MS = int(time.time() * 1000)
HOUR_MS = 3_600_000
HEADER = "requests,finished,other,input_tokens,cached_tokens,output_tokens,reasoning_tokens,cost_usd\n"
ROWS = [("acme", 1, 1_000_000_001), ("acme", 30, 500_000_000), ('b, "c"', 2, 0), ("old", 24 * 9, 10**9)]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Of a gateway with a few rows, so many hours old."""
    url = f"sqlite:///{tmp_path}/gateway.db"

    async def fill() -> None:
        database = await Database.open(url)
        await LedgerTable(database).insert(
            [
                LedgerRow(
                    id=f"id-{number}",
                    request_id="req",
                    tenant=tenant,
                    model="kimi-k3",
                    arrived_unix_ms=NOW_MS - hours * HOUR_MS,
                    ended_unix_ms=NOW_MS - hours * HOUR_MS,
                    outcome="finished" if cost else "limited",
                    input_tokens=10,
                    cached_tokens=4,
                    output_tokens=3,
                    reasoning_tokens=2,
                    cost_nano_usd=cost,
                )
                for number, (tenant, hours, cost) in enumerate(ROWS)
            ]
        )
        await Registry(database, SystemClock()).apply_tenants({"fresh": TenantSettings()})
        await database.close()

    asyncio.run(fill())
    path = tmp_path / "gateway.yaml"
    path.write_text(f"storage: {{ledger_url: '{url}'}}\n")
    return path


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    app = typer.Typer()
    app.command()(usage)
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


def test_a_table(config: Path) -> None:
    assert run("--config", str(config)) == (
        0,
        "tenant  requests  finished  other  input_tokens  cached_tokens  output_tokens  reasoning_tokens     cost_usd\n"
        "acme           2         2      0            20              8              6                 4  1.500000001\n"
        'b, "c"         1         0      1            10              4              3                 2         0.00\n',
        "",
    )


def test_csv_is_read_back(config: Path) -> None:
    _, text, _ = run("--format", "csv", "--config", str(config))

    assert text.startswith(f"tenant,{HEADER}")
    assert [("acme", "1.500000001"), ('b, "c"', "0.00")] == [
        (line["tenant"], line["cost_usd"]) for line in csv.DictReader(io.StringIO(text))
    ]


def test_json_has_whole_numbers_and_exact_dollars(config: Path) -> None:
    _, text, _ = run("--format", "json", "--tenant", "acme", "--since", "24h", "--config", str(config))

    assert [
        {
            "tenant": "acme",
            "requests": 1,
            "finished": 1,
            "other": 0,
            "input_tokens": 10,
            "cached_tokens": 4,
            "output_tokens": 3,
            "reasoning_tokens": 2,
            "cost_usd": "1.000000001",
        }
    ] == json.loads(text)


@pytest.mark.parametrize("by", [["--by", "model,tenant"], ["--by", "model", "--by", "tenant,model"]])
def test_several_groups(config: Path, by: list[str]) -> None:
    _, text, _ = run(*by, "--since", "30d", "--format", "csv", "--config", str(config))

    assert [["model", "tenant"], ["kimi-k3", "acme"], ["kimi-k3", 'b, "c"'], ["kimi-k3", "old"]] == [
        line[:2] for line in csv.reader(io.StringIO(text))
    ]


@pytest.mark.parametrize(
    ("format", "text"), [("csv", "tenant," + HEADER), ("json", "[]\n"), ("table", "tenant  " + HEADER.replace(",", "  "))]
)
def test_nothing_is_a_header_or_an_empty_list(config: Path, format: str, text: str) -> None:
    assert (0, text, "") == run("--tenant", "old", "--format", format, "--config", str(config))


def test_a_tenant_that_has_asked_for_nothing_has_used_nothing(config: Path) -> None:
    assert (0, "[]\n", "") == run("--tenant", "fresh", "--format", "json", "--config", str(config))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--since", "yesterday"], "error: --since: `yesterday` is no duration"),
        (["--tenant", "nobody"], "error: there is no tenant `nobody`; tenants are: `fresh`"),
        (["--by", "tenant,colour"], "error: --by: `colour` is nothing to group by"),
        (["--config", "nowhere.yaml"], "error: "),
    ],
)
def test_mistakes_are_named(config: Path, arguments: list[str], message: str) -> None:
    code, text, errors = run("--config", str(config), *arguments)

    assert (2, "") == (code, text)
    assert errors.startswith(message)
    assert 1 == len(errors.splitlines())


def test_a_store_that_is_away_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("storage: {ledger_url: 'postgresql://me:secret@127.0.0.1:1/none'}\n")
    code, text, errors = run("--config", str(path))

    assert (2, "") == (code, text)
    assert errors.startswith("error: the store `postgresql")
    assert "secret" not in errors
