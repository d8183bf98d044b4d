"""`k3-gateway usage`: what was used and what it cost, from the ledger.

Role: command line. Asks the same `report` as the admin API. What a running gateway still has in its spool (a fraction of a
second, unless the store is away) is not in it.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from server.clock import SystemClock
from server.commands.registry_work import Config, refuse, settings_of
from server.durations import seconds_of
from server.errors import NotFoundError
from server.store.errors import StoreError

if TYPE_CHECKING:
    from server.usage.report import UsageLine

NUMBERS: Final = ("requests", "finished", "other", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


def usage(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    since: Annotated[str, typer.Option(help="How far back: `30m`, `24h`, `7d`.")] = "7d",
    by: Annotated[list[str] | None, typer.Option(help="tenant, model, key or day; several by commas or repetition.")] = None,
    format: Annotated[Literal["table", "csv", "json"], typer.Option(help="How it is printed.")] = "table",
    config: Config = None,
) -> None:
    """Tokens and costs from the ledger."""
    names = list(dict.fromkeys(name.strip() for names in by or ["tenant"] for name in names.split(",")))
    try:
        since_s = seconds_of(since)
    except ValueError as error:
        refuse([f"--since: {error}"])
    url = settings_of(config)[0].storage.ledger_url
    try:
        lines = asyncio.run(_report(url, tenant, int((time.time() - since_s) * 1000), names))
    except ValueError as error:
        refuse([f"--by: {error}"])
    except (StoreError, NotFoundError) as error:
        refuse([str(error)])
    typer.echo(rendered(lines, names, format), nl=False)


def rendered(lines: Sequence[UsageLine], names: Sequence[str], format: str) -> str:
    """The lines as `table`, `csv` or `json`; the first columns are what they are grouped by, `names`."""
    rows = [{**{name: getattr(line, name) for name in (*names, *NUMBERS)}, "cost_usd": line.cost_usd} for line in lines]
    if format == "json":
        return json.dumps(rows, indent=2) + "\n"
    columns = [*names, *NUMBERS, "cost_usd"]
    cells = [["" if row[column] is None else str(row[column]) for column in columns] for row in rows]
    if format == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([columns, *cells])
        return text.getvalue()
    return _table(columns, cells, len(names))


def _table(columns: Sequence[str], cells: Sequence[Sequence[str]], num_left: int) -> str:
    """Columns side by side, the first `num_left` flush left, numbers flush right."""
    every = [columns, *cells]
    widths = [max(len(row[index]) for row in every) for index in range(len(columns))]

    def text(row: Sequence[str]) -> str:
        left = [cell.ljust(width) for cell, width in zip(row[:num_left], widths, strict=False)]
        right = [cell.rjust(width) for cell, width in zip(row[num_left:], widths[num_left:], strict=True)]
        return "  ".join([*left, *right]).rstrip() + "\n"

    return "".join(map(text, every))


async def _report(url: str, tenant: str | None, since_unix_ms: int, by: Sequence[str]) -> list[UsageLine]:
    """Raises `NotFoundError` for a tenant that neither the registry nor the ledger knows."""
    from server.store.database import Database  # loads the database's libraries, which `--help` need not wait for
    from server.tenancy.registry import Registry
    from server.usage.report import report

    database = await Database.open(url, must_exist=True)
    try:
        lines = await report(database, tenant=tenant, since_unix_ms=since_unix_ms, by=by)
        if tenant is not None and not lines and not await report(database, tenant=tenant):
            await Registry(database, SystemClock()).check_tenant(tenant)
        return lines
    finally:
        await database.close()
