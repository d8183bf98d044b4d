"""Runs the steps that a database has not had yet, a new one all of them.

A step is the SQL that SQLite and PostgreSQL both read. The table that says how far a database is has Alembic's name and form.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, inspect, select

from server.store.errors import StoreVersionError
from server.store.migrations.versions import step_0001_first_tables

STEPS: Final = {"0001": step_0001_first_tables.STATEMENTS}
"""All that this version knows, in their order."""

HEAD: Final = next(reversed(STEPS))
_AT: Final = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def current_step(connection: Connection) -> str | None:
    """The step of a database, None for one without tables."""
    if not inspect(connection).has_table(_AT.name):
        return None
    step: str | None = connection.scalar(select(_AT.c.version_num))
    return step


def upgrade(connection: Connection, current: str | None) -> None:
    """Bring the database from step `current` (None: empty) to the last one, within the transaction that `connection` is in.

    The caller holds the lock that keeps other processes from doing the same. Raises `StoreVersionError` for a step that this
    version does not know.
    """
    steps = list(STEPS)
    if current is None:
        _AT.create(connection, checkfirst=True)
    elif current in STEPS:
        steps = steps[steps.index(current) + 1 :]
    else:
        raise StoreVersionError(
            f"the store is at step `{current}`, which this version does not know; run the version that made it"
        )
    for step in steps:
        for statement in STEPS[step]:
            connection.exec_driver_sql(statement)
    connection.execute(_AT.delete())
    connection.execute(_AT.insert(), {"version_num": HEAD})
