"""Runs the steps that a database has not had yet. The only module that imports Alembic, and imported only where there are any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from server.store.errors import StoreVersionError

FOLDER = Path(__file__).parent


def steps() -> ScriptDirectory:
    """All steps that this version knows."""
    return ScriptDirectory(str(FOLDER))


def upgrade(connection: Connection, current: str | None) -> None:
    """Bring the database from step `current` (None: empty) to the last one, within the transaction that `connection` is in.

    The caller holds the lock that keeps other processes from doing the same. Raises `StoreVersionError` for a step that this
    version does not know.
    """
    script = steps()
    if current is not None and current not in {step.revision for step in script.walk_revisions()}:
        raise StoreVersionError(
            f"the store is at step `{current}`, which this version does not know; run the version that made it"
        )

    def to_head(revision: Any, context: Any) -> Any:
        return script._upgrade_revs("head", revision)

    with EnvironmentContext(Config(), script, fn=to_head, destination_rev="head") as environment:
        environment.configure(connection=connection, transactional_ddl=True)
        environment.run_migrations()
