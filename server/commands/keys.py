"""`k3-gateway keys create | list | rotate | revoke`: API keys, in the store that a running gateway looks at.

Role: command line. Does what the admin API does, through the same registry. A secret goes to standard output alone, once.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from server.commands.registry_work import Config, moment, refuse, settings_of, table, with_registry
from server.durations import seconds_of

if TYPE_CHECKING:
    from server.tenancy.rows import KeyInfo

app = typer.Typer(no_args_is_help=True, help="API keys: create, list, rotate, revoke. A running gateway follows within a second.")
KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `keys list` shows it.")]


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="Whom the key acts for.")],
    name: Annotated[str, typer.Option(help="What it is for, to recognise it by.")] = "",
    expires: Annotated[str | None, typer.Option(help="After how long it is refused: `12h`, `90d`. Unset: never.")] = None,
    config: Config = None,
) -> None:
    """Make a key, and print its secret; it can't be shown again."""
    expires_in_s = None if expires is None else _seconds("--expires", expires, least=1)
    info, secret = with_registry(settings_of(config)[0], lambda registry: registry.create_key(tenant, name, expires_in_s))
    _show(info, secret)


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    format: Annotated[Literal["table", "json"], typer.Option(help="How it is printed.")] = "table",
    config: Config = None,
) -> None:
    """All keys, oldest first, the expired and revoked ones among them."""
    infos = with_registry(settings_of(config)[0], lambda registry: registry.keys(tenant))
    now = int(time.time())
    if format == "json":
        typer.echo(json.dumps([{**asdict(info), "state": info.state(now)} for info in infos], indent=2))
        return
    columns = ("id", "tenant", "name", "state", "created", "expires", "revoked")
    rows = [(info.id, info.tenant, info.name, info.state(now), *map(moment, _times(info))) for info in infos]
    typer.echo(table(columns, rows))


@app.command()
def rotate(
    key_id: KeyId,
    overlap: Annotated[str, typer.Option(help="For how long the old key still works: `24h`; `0s`: not at all.")],
    config: Config = None,
) -> None:
    """Make a key in place of an old one, and print its secret; the old one works for the overlap."""
    overlap_s = _seconds("--overlap", overlap)
    info, secret = with_registry(settings_of(config)[0], lambda registry: registry.rotate_key(key_id, overlap_s))
    _show(info, secret)


@app.command()
def revoke(key_id: KeyId, config: Config = None) -> None:
    """Refuse a key from now on."""
    info = with_registry(settings_of(config)[0], lambda registry: registry.revoke_key(key_id))
    typer.echo(f"key {info.id} of tenant {info.tenant} is revoked since {moment(info.revoked_unix_s)}")


def _times(info: KeyInfo) -> tuple[int | None, ...]:
    return info.created_unix_s, info.expires_unix_s, info.revoked_unix_s


def _show(info: KeyInfo, secret: str) -> None:
    until = "" if info.expires_unix_s is None else f", valid until {moment(info.expires_unix_s)}"
    typer.echo(f"key {info.id} of tenant {info.tenant}{until}; keep the secret, it is not shown again:", err=True)
    typer.echo(secret)


def _seconds(option: str, text: str, *, least: int = 0) -> int:
    try:
        return seconds_of(text, least=least)
    except ValueError as error:
        refuse([f"{option}: {error}"])
