"""`k3-gateway tenants list | apply`: tenants, in the store that a running gateway looks at.

Role: command line. Does what the admin API does, through the same registry.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from server.commands.registry_work import Config, moment, refuse, settings_of, table, with_registry

if TYPE_CHECKING:
    from server.tenancy.rows import TenantInfo

app = typer.Typer(no_args_is_help=True, help="Tenants: list, apply a file. A running gateway follows within a second.")


@app.command("list")
def list_tenants(
    format: Annotated[Literal["table", "json"], typer.Option(help="How it is printed.")] = "table",
    config: Config = None,
) -> None:
    """All tenants and what they are allowed."""
    infos = with_registry(settings_of(config)[0], lambda registry: registry.tenants())
    if format == "json":
        typer.echo(json.dumps([_plain(info) for info in infos], indent=2))
        return
    columns = ("name", "state", "weight", "models", "cache group", "limits and budget", "updated")
    typer.echo(table(columns, [_cells(info) for info in infos]))


@app.command()
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON: `tenants: {name: {weight: 2, limits: {…}}}`.")],
    config: Config = None,
) -> None:
    """Create the tenants of a file, or change them to what it says; others stay. A file with a mistake changes nothing."""
    from server.tenancy.tenants_file import TenantsFileError, read_tenants

    settings, names_models = settings_of(config)
    try:
        wanted = read_tenants(file, settings.models if names_models else None)
    except TenantsFileError as error:
        refuse(error.mistakes)
    changes = with_registry(settings, lambda registry: registry.apply_tenants(wanted), makes_store=True)
    for what, names in (("created", changes.created), ("changed", changes.changed), ("unchanged", changes.unchanged)):
        for name in names:
            typer.echo(f"{what} {name}")


def _plain(info: TenantInfo) -> dict[str, Any]:
    settings = None if info.settings is None else info.settings.model_dump(mode="json")
    return {
        "name": info.name,
        "settings": settings,
        "created_unix_s": info.created_unix_s,
        "updated_unix_s": info.updated_unix_s,
    }


def _cells(info: TenantInfo) -> tuple[str, ...]:
    of = info.settings
    if of is None:
        return info.name, "unreadable", "", "", "", "", moment(info.updated_unix_s)
    bounds = {**of.limits.model_dump(exclude_none=True), **of.budget.model_dump(exclude_none=True)}
    return (
        info.name,
        "suspended" if of.suspended else "active",
        f"{of.weight:g}",
        "all" if of.models is None else ", ".join(of.models) or "none",
        of.cache_group or "its own",
        ", ".join(f"{name} {bound}" for name, bound in bounds.items()) or "none",
        moment(info.updated_unix_s),
    )
