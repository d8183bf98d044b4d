"""Connections to the store: SQLite or PostgreSQL, by the URL.

Role: below tenancy and usage, which bring their own statements. A store that is away when the gateway starts is migrated and
used as soon as it is there. Invariant: what is within one `write()` is committed whole or not at all; no error has a password.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import URL, AsyncAdaptedQueuePool, Connection, Table, event, make_url, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from server.store.errors import StoreAwayError, StoreError, StoreUnusableError, StoreVersionError
from server.store.migrations.run import HEAD, current_step, upgrade

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

CONNECT_TIMEOUT_S: Final = 5.0
BUSY_TIMEOUT_S: Final = 5.0
LOCKED_PAUSE_S: Final = 0.02
_LOCKED: Final = frozenset({"SQLITE_BUSY", "SQLITE_BUSY_RECOVERY", "SQLITE_LOCKED"})
MIGRATION_LOCK: Final = 0x6B33_6777_0001  # any number that nothing else in the database takes an advisory lock by
AWAY_STATES: Final = frozenset({"08", "25", "28", "3D", "40", "53", "55", "57", "58"})
"""Classes of SQLSTATE that blame the server or other transactions, not the statement. Source: PostgreSQL, appendix A."""


class Database:
    """One store. Made without touching it; the first use, or `open`, creates and migrates it where need be."""

    def __init__(self, url: str, *, command_timeout_s: float = 10.0) -> None:
        """`url`: `sqlite:///path`, `sqlite://` (in memory, one connection) or `postgresql://user:password@host/name`.

        `command_timeout_s`: for one statement of PostgreSQL. Raises `StoreError` for a URL that is none of these.
        """
        self._url = _parsed(url)
        self._is_sqlite = self._url.get_backend_name() == "sqlite"
        self._engine = _sqlite_engine(self._url) if self._is_sqlite else _postgresql_engine(self._url, command_timeout_s)
        self._is_ready = False
        self._preparing = asyncio.Lock()

    @classmethod
    async def open(cls, url: str, *, command_timeout_s: float = 10.0, must_exist: bool = False) -> Database:
        """A store that is there and has this version's tables. `must_exist`: don't make its file. Raises `StoreError`."""
        database = cls(url, command_timeout_s=command_timeout_s)
        try:
            if must_exist:
                database._check_exists()
            await database.prepare()
        except BaseException:
            await database.close()
            raise
        return database

    @property
    def name(self) -> str:
        """The store's URL, without password."""
        return self._url.set(query={}).render_as_string(hide_password=True)

    async def close(self) -> None:
        """Give the connections back. Also right after an error, and twice."""
        await self._engine.dispose()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that sees the store as it is now, whatever is written meanwhile. Raises `StoreError`."""
        await self.prepare()
        async with self._begin(writes=False) as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that is committed at the end of the block, and rolled back by an exception. Raises `StoreError`.

        With SQLite it waits for all others that write. The block should do nothing but talk to the store: an `OSError` in it is
        taken for the store's.
        """
        await self.prepare()
        async with self._begin(writes=True) as connection:
            yield connection

    def insert(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        """An INSERT that can have an ON CONFLICT."""
        if self._is_sqlite:
            return sqlite.insert(table)
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)

    async def prepare(self) -> None:
        """Create and migrate the store, once; safe beside other processes that do the same. Raises `StoreError`."""
        if not self._is_ready:
            async with self._preparing:
                await self._prepare_once()

    async def _prepare_once(self) -> None:
        if self._is_ready:
            return
        if self._is_sqlite:
            await self._make_file()
        async with self._begin(writes=False) as connection:
            current = await connection.run_sync(current_step)
        if current != HEAD:
            await self._migrate()
        self._is_ready = True

    def _check_exists(self) -> None:
        if self._is_sqlite and not _is_in_memory(self._url) and not Path(str(self._url.database)).exists():
            where = "go to the folder where the gateway was started, or give its `--config`"
            raise StoreError(f"there is no store `{self.name}` here; {where}")

    async def _make_file(self) -> None:
        """The file, for its owner alone, in a mode that lets others read while one writes."""
        with self._translated():
            if not _is_in_memory(self._url):
                _make_private(Path(str(self._url.database)))
            async with self._engine.connect() as connection:  # in no transaction, as the mode can't be changed in one
                await _write_ahead(connection)

    async def _migrate(self) -> None:
        async with self._begin(writes=True) as connection:
            if not self._is_sqlite:
                await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
            current = await connection.run_sync(current_step)  # another process may have been here first
            if current != HEAD:
                await connection.run_sync(upgrade, current)

    @asynccontextmanager
    async def _begin(self, *, writes: bool) -> AsyncIterator[AsyncConnection]:
        with self._translated():
            async with self._engine.connect() as connection:
                if self._is_sqlite:
                    await connection.execution_options(k3gw_begin="BEGIN IMMEDIATE" if writes else "BEGIN")
                elif not writes:
                    await connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
                async with connection.begin():
                    yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except StoreVersionError as error:
            raise StoreVersionError(f"{self.name}: {error}") from None
        except Exception as error:
            reason = _away(error)
            if reason is None:
                raise
            if self._is_sqlite and _is_no_store(error):
                raise StoreUnusableError(
                    f"`{self.name}` is no store: {reason}; name a file that can be one in `storage.ledger_url`"
                ) from None
            # Not `from error`: a driver's error repeats the statement and its values.
            raise StoreAwayError(f"the store `{self.name}` can't be used: {reason}") from None


async def _write_ahead(connection: AsyncConnection) -> None:
    """Change the mode, unless it is that already. Raises `OperationalError` once others have kept the file for too long.

    SQLite does not wait here, as it does for a transaction: of two that change a new file's mode at once one is refused.
    """
    end_s = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            await connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        except OperationalError as error:
            if getattr(error.orig, "sqlite_errorname", "") not in _LOCKED or time.monotonic() > end_s:
                raise
        else:
            return
        await asyncio.sleep(LOCKED_PAUSE_S)


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise StoreError("the store's URL is no `sqlite:///path` nor `postgresql://user:password@host/name`") from None
    driver = {"sqlite": "aiosqlite", "postgresql": "asyncpg"}.get(parsed.get_backend_name())
    if driver is None or parsed.drivername.partition("+")[2] not in ("", driver):
        raise StoreError(f"the store's URL begins with `{parsed.drivername}`; use `sqlite:///path` or `postgresql://…`")
    if driver == "asyncpg" and "sslmode" in parsed.query:  # as libpq calls it
        parsed = parsed.set(query={"ssl": parsed.query["sslmode"], **parsed.difference_update_query(["sslmode"]).query})
    return parsed.set(drivername=f"{parsed.get_backend_name()}+{driver}")


def _is_in_memory(url: URL) -> bool:
    return not url.database or url.database == ":memory:"


def _sqlite_engine(url: URL) -> AsyncEngine:
    size = 1 if _is_in_memory(url) else 4  # a database in memory is its connection's own
    engine = create_async_engine(
        url,
        poolclass=AsyncAdaptedQueuePool,
        pool_size=size,
        max_overflow=0,
        pool_timeout=CONNECT_TIMEOUT_S,
        hide_parameters=True,  # an error is logged whole, and secrets are among them
        connect_args={"timeout": BUSY_TIMEOUT_S},
    )

    @event.listens_for(engine.sync_engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # the driver would begin transactions of its own, and not before every statement
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begun(connection: Connection) -> None:
        # A transaction that reads first and then writes can't wait for another writer: what it has read would be old.
        begin = connection.get_execution_options().get("k3gw_begin")
        if begin is not None:
            connection.exec_driver_sql(begin)

    return engine


def _postgresql_engine(url: URL, command_timeout_s: float) -> AsyncEngine:
    return create_async_engine(
        url,
        pool_size=5,
        max_overflow=0,
        pool_timeout=CONNECT_TIMEOUT_S,
        hide_parameters=True,  # an error is logged whole, and secrets are among them
        pool_pre_ping=True,
        connect_args={"timeout": CONNECT_TIMEOUT_S, "command_timeout": command_timeout_s},
    )


def _make_private(path: Path) -> None:
    """The file for its owner alone, in folders for its owner alone; what exists stays as it is."""
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    try:
        os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        # Looked at, not opened: closing it again would drop the locks that SQLite's other connections in this process have on it.
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None


def _is_no_store(error: Exception) -> bool:
    """Whether waiting would not help. Source: SQLite's result codes."""
    if isinstance(error, IsADirectoryError | NotADirectoryError | PermissionError | FileExistsError | FileNotFoundError):
        return True
    if isinstance(error, OSError) and error.errno == errno.EROFS:  # of making the file: what SQLite is told has no such number
        return True
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlite_errorname", "") in ("SQLITE_NOTADB", "SQLITE_CANTOPEN")


def _away(error: Exception) -> str | None:
    """Why the store can't be used, None where an error says nothing of the store."""
    if isinstance(error, PoolTimeoutError):
        return "all connections are in use"
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    cause: BaseException = error
    if isinstance(error, DBAPIError):
        cause = getattr(error.orig, "driver_exception", None) or error.orig or error
    state = getattr(cause, "sqlstate", None)
    if isinstance(state, str):
        is_away = state[:2] in AWAY_STATES
    else:
        lost = isinstance(error, DBAPIError) and error.connection_invalidated
        is_away = lost or isinstance(error, OperationalError | InterfaceError | InternalError) or type(error) is DatabaseError
    return str(cause).partition("\n")[0] if is_away else None
