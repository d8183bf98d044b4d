"""`k3-gateway keys` and `k3-gateway tenants`, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from server.clock import SystemClock
from server.store.database import Database
from server.tenancy.keys import KeyTable
from server.tenancy.registry import Registry
from tests.commands.conftest import Run

MADE = re.compile(r"key ([0-9a-f]{12}) of tenant acme(?:, valid until [0-9: Z-]+)?; keep the secret, it is not shown again:\n")


@pytest.fixture
def acme(run: Run, tmp_path: Path) -> Path:
    """A file with the tenant `acme`, applied."""
    path = tmp_path / "tenants.yaml"
    path.write_text(
        "tenants:\n  acme: {weight: 4, models: [kimi-k3], limits: {requests_per_minute: 600}, budget: {usd_per_month: 900}}\n"
    )
    assert "created acme\n" == run("tenants", "apply", str(path)).stdout
    return path


def found(store_url: str, *secrets: str) -> list[str | None]:
    """Which key each secret is to a gateway that has just looked."""

    async def look() -> list[str | None]:
        database = await Database.open(store_url)
        keys = KeyTable()
        keys.load(await Registry(database, SystemClock()).snapshot())
        await database.close()
        return [match[1] if (match := keys.find(secret.encode())) else None for secret in secrets]

    return asyncio.run(look())


def test_a_key_s_life(run: Run, store_url: str, acme: Path) -> None:
    made = run("keys", "create", "--tenant", "acme", "--name", "ci")
    secret = made.stdout.removesuffix("\n")
    match = MADE.fullmatch(made.stderr)
    assert match, made.stderr
    assert re.fullmatch(r"k3gw-[\w-]{43}", secret)
    assert [match[1]] == found(store_url, secret)

    rotated = run("keys", "rotate", match[1], "--overlap", "24h")
    successor = MADE.fullmatch(rotated.stderr)
    assert successor, rotated.stderr
    new_secret = rotated.stdout.strip()
    assert [match[1], successor[1]] == found(store_url, secret, new_secret)

    revoked = run("keys", "revoke", match[1])
    assert revoked.stdout.startswith(f"key {match[1]} of tenant acme is revoked since 20")
    assert [None, successor[1]] == found(store_url, secret, new_secret)

    listed = json.loads(run("keys", "list", "--format", "json").stdout)
    assert [(match[1], "revoked"), (successor[1], "active")] == [
        (key["id"], key["state"]) for key in sorted(listed, key=lambda key: key["id"] != match[1])
    ]
    assert ["acme", "ci"] * 2 == [key[field] for key in listed for field in ("tenant", "name")]
    table = run("keys", "list", "--tenant", "acme").stdout.splitlines()
    assert ["id", "tenant", "name", "state", "created", "expires", "revoked"] == table[0].split()
    assert {(match[1], "revoked"), (successor[1], "active")} == {(line.split()[0], line.split()[3]) for line in table[1:]}
    for text in ("\n".join(table), json.dumps(listed)):
        assert secret not in text
        assert new_secret not in text


def test_expiry_is_said_and_kept(run: Run, acme: Path) -> None:
    made = run("keys", "create", "--tenant", "acme", "--expires", "90d")
    assert "valid until" in made.stderr
    (key,) = json.loads(run("keys", "list", "--format", "json").stdout)
    assert 90 * 86400 == key["expires_unix_s"] - key["created_unix_s"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["keys", "create", "--tenant", "x"], "there is no tenant `x`; tenants are: `acme`"),
        (["keys", "create", "--tenant", "acme", "--expires", "90x"], "--expires: `90x` is no duration"),
        (["keys", "create", "--tenant", "acme", "--expires", "0s"], "--expires: `0s` is shorter than 1 s"),
        (["keys", "create", "--tenant", "acme", "--name", "a\nb"], "is no name of a key"),
        (["keys", "list", "--tenant", "x"], "there is no tenant `x`"),
        (["keys", "rotate", "nokey", "--overlap", "24h"], "there is no key `nokey`; keys are: none"),
        (["keys", "rotate", "nokey", "--overlap", "-1h"], "--overlap: `-1h` is no duration"),
        (["keys", "revoke", "nokey"], "there is no key `nokey`"),
        (["tenants", "apply", "/no/such/file"], "/no/such/file: can't be read: No such file"),
    ],
)
def test_mistakes_are_one_clear_line(run: Run, acme: Path, arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (2, "") == (done.exit_code, done.stdout)
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_tenants_are_applied_and_listed(run: Run, acme: Path) -> None:
    acme.write_text("acme: {weight: 2, suspended: true}\nb: {}\n")
    assert "created b\nchanged acme\n" == run("tenants", "apply", str(acme)).stdout
    assert "unchanged acme\nunchanged b\n" == run("tenants", "apply", str(acme)).stdout

    listed = json.loads(run("tenants", "list", "--format", "json").stdout)
    assert [("acme", 2.0, True), ("b", 1.0, False)] == [
        (of["name"], of["settings"]["weight"], of["settings"]["suspended"]) for of in listed
    ]
    table = run("tenants", "list").stdout.splitlines()
    assert [["acme", "suspended", "2", "all"], ["b", "active", "1", "all"]] == [line.split()[:4] for line in table[1:]]


def test_a_file_with_mistakes_changes_nothing_and_names_all(run: Run, acme: Path) -> None:
    before = run("tenants", "list", "--format", "json").stdout
    acme.write_text("c: {}\nacme:\n  weight: 0\n  models: [gpt-9]\nd: {speed: 1}\n")
    done = run("tenants", "apply", str(acme))

    assert 2 == done.exit_code
    starts = [
        "line 3: acme.weight: `0`",
        "line 4: acme.models[0]: `gpt-9`: there is no such model",
        "line 5: d.speed: there is no",
    ]
    starts = [f"error: {acme}: {start}" for start in starts]
    assert starts == [line[: len(start)] for line, start in zip(done.stderr.splitlines(), starts, strict=True)]
    assert before == run("tenants", "list", "--format", "json").stdout


def test_models_are_checked_where_the_configuration_names_them(run: Run, config: Path, acme: Path, store_url: str) -> None:
    acme.write_text("acme: {models: [another-model]}\n")
    assert 2 == run("tenants", "apply", str(acme)).exit_code
    config.write_text(json.dumps({"storage": {"ledger_url": store_url}}))
    assert 0 == run("tenants", "apply", str(acme)).exit_code


def test_a_store_that_is_away_or_settings_that_are_wrong_are_one_clear_line(run: Run, config: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database " * 100)
    for settings, message in (
        ({"storage": {"ledger_url": f"sqlite:///{tmp_path}/file"}}, "error: `sqlite+aiosqlite:///"),
        (
            {"storage": {"ledger_url": "postgresql://u:hidden@127.0.0.1:1/x"}},
            "error: the store `postgresql+asyncpg://u:***@127.0.0.1:1/x`",
        ),
        ({"storage": {"ledger_url": "mysql://u:hidden@h/x"}}, "error: storage.ledger_url: "),
        ({"nonsense": 1}, "error: nonsense: there is no such setting"),
    ):
        config.write_text(json.dumps(settings))
        done = run("keys", "list")
        assert 2 == done.exit_code
        assert done.stderr.startswith(message)
        assert "hidden" not in done.stderr


@pytest.mark.parametrize("arguments", [["keys", "list"], ["tenants", "list"], ["keys", "create", "--tenant", "default"]])
def test_a_store_that_is_not_there_is_said_and_not_made(run: Run, config: Path, tmp_path: Path, arguments: list[str]) -> None:
    """Most likely this is not the folder that the gateway runs in: an empty list would be a lie."""
    config.write_text(json.dumps({"storage": {"ledger_url": f"sqlite:///{tmp_path}/elsewhere/gateway.db"}}))
    done = run(*arguments)

    assert (2, "") == (done.exit_code, done.stdout)
    assert done.stderr.startswith("error: there is no store `sqlite+aiosqlite:///")
    assert "--config" in done.stderr
    assert not (tmp_path / "elsewhere").exists()


def test_help_does_not_load_the_database() -> None:
    look = "import sys, server.commands.keys, server.commands.tenants; print(any(name.startswith('sqlalchemy') for name in sys.modules))"
    assert "False\n" == subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
