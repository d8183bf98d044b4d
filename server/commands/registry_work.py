"""What the commands on tenants and keys share: the store of the settings is opened, asked, and closed.

Must not: import the store's libraries before a command runs; `--help` and mistakes in flags need not wait for them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from server.clock import SystemClock
from server.errors import GatewayError
from server.settings import Settings, SettingsError, load_with_origins

if TYPE_CHECKING:
    from server.tenancy.registry import Registry

T = TypeVar("T")
Config = Annotated[Path | None, typer.Option(help="YAML configuration file.")]


def settings_of(config: Path | None) -> tuple[Settings, bool]:
    """The settings, and whether they name models (or leave the built-in ones). Exits with 2 and every mistake."""
    try:
        settings, origins = load_with_origins(config, {})
    except SettingsError as error:
        refuse(error.mistakes)
    return settings, any(name.startswith("models") for name in origins)


def with_registry(settings: Settings, work: Callable[[Registry], Awaitable[T]], *, makes_store: bool = False) -> T:
    """What `work` returns when it is given the registry. Exits with 2 where the store can't be used or refuses.

    `makes_store`: a store that is not there is made. Otherwise it is a mistake: most likely this is another folder.
    """
    from server.store.database import Database
    from server.store.errors import StoreError
    from server.tenancy.registry import Registry

    async def worked() -> T:
        database = await Database.open(settings.storage.ledger_url, must_exist=not makes_store)
        try:
            return await work(Registry(database, SystemClock()))
        finally:
            await database.close()

    try:
        return asyncio.run(worked())
    except StoreError as error:
        refuse([str(error)])
    except GatewayError as error:
        refuse([error.message])


def refuse(mistakes: Iterable[str]) -> NoReturn:
    """Say what is wrong, and exit with 2."""
    for mistake in mistakes:
        typer.echo(f"error: {mistake}", err=True)
    sys.exit(2)


def moment(unix_s: int | None) -> str:
    """A time as people read it, in UTC; nothing for None."""
    return "" if unix_s is None else datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side, flush left."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (columns, *rows))
    return "\n".join(lines)
