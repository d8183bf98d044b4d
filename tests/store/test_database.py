"""The store's connections and migrations, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import re
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, func, inspect, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from server.store import database as database_module
from server.store.database import Database
from server.store.errors import StoreAwayError, StoreError, StoreUnusableError, StoreVersionError
from server.store.migrations import run
from server.store.tables import METADATA, api_keys, tenants, values
from tests.services.postgres import PASSWORD, Postgres

TENANT = {"name": "acme", "settings": "{}", "created_unix_s": 1, "updated_unix_s": 1}
FIRST_TABLES = Path(__file__).parents[1] / "data" / "store" / "first_tables.sql"
OPEN_ALONE = """
import asyncio, sys
from server.store.database import Database
async def main():
    sys.stdin.readline()
    await (await Database.open(sys.argv[1])).close()
asyncio.run(main())
"""


async def test_migrations_make_the_tables_that_the_code_uses(store_url: str) -> None:
    database = await Database.open(store_url)

    def differences(connection: Connection) -> list[Any]:
        return list(compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), METADATA))

    def names(connection: Connection) -> dict[str, set[str | None]]:
        """What autogenerate does not compare: the names of keys and constraints."""
        at = inspect(connection)
        return {
            table: {
                at.get_pk_constraint(table)["name"],
                *(of["name"] for of in at.get_foreign_keys(table)),
                *(of["name"] for of in at.get_unique_constraints(table)),
            }
            for table in METADATA.tables
        }

    async with database.read() as connection:
        found, named = await connection.run_sync(differences), await connection.run_sync(names)
    await database.close()
    assert [] == found
    assert {
        "tenants": {"pk_tenants"},
        "api_keys": {"pk_api_keys", "uq_api_keys_digest", "fk_api_keys_tenant_tenants"},
        "values": {"pk_values"},
        "ledger": {"pk_ledger"},
    } == named


async def test_a_step_that_was_released_is_what_it_was(tmp_path: Path) -> None:
    """What the first version's stores are made of, as SQLite keeps it."""
    await (await Database.open(f"sqlite:///{tmp_path / 'gateway.db'}")).close()
    with closing(sqlite3.connect(tmp_path / "gateway.db")) as connection:
        made = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid").fetchall()
        rows = connection.execute("SELECT * FROM alembic_version UNION ALL SELECT name || '=' || value FROM 'values'").fetchall()
    assert [("0001",), ("version=0",)] == rows
    assert FIRST_TABLES.read_text(encoding="utf-8").split() == " ; ".join(sql for (sql,) in made).split()


async def test_a_store_gets_the_steps_that_it_has_not_had(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, each once; and none of them where one fails."""

    def release(name: str, *statements: str) -> None:
        monkeypatch.setattr(run, "STEPS", {**run.STEPS, name: statements})
        for module in (run, database_module):
            monkeypatch.setattr(module, "HEAD", name)

    async def opened() -> tuple[Any, ...]:
        database = await Database.open(store_url)
        async with database.read() as connection:
            step = await connection.scalar(text("SELECT version_num FROM alembic_version"))
            found = step, *(await connection.execute(text("SELECT name, created_unix_s FROM tenants"))).all()
        await database.close()
        return found

    assert ("0001",) == await opened()
    release("0002", "INSERT INTO tenants VALUES ('second', '{}', 2, 2)")
    release("0003", "UPDATE tenants SET created_unix_s = created_unix_s + 1")
    assert ("0003", ("second", 3)) == await opened() == await opened()
    release("0004", "UPDATE tenants SET created_unix_s = 9")
    with monkeypatch.context() as patch:
        patch.setattr(run, "STEPS", {**run.STEPS, "0004": (*run.STEPS["0004"], "this is no SQL")})
        with pytest.raises((DBAPIError, StoreError)):
            await opened()
    with monkeypatch.context() as patch:
        patch.setattr(database_module, "HEAD", "0003")
        assert ("0003", ("second", 3)) == await opened()
    assert ("0004", ("second", 9)) == await opened()


async def test_a_block_is_written_whole_or_not_at_all(store_url: str) -> None:
    database = await Database.open(store_url)
    with suppress(ZeroDivisionError):
        async with database.write() as connection:
            await connection.execute(tenants.insert(), TENANT)
            raise ZeroDivisionError
    async with database.read() as connection:
        assert 0 == await connection.scalar(select(func.count()).select_from(tenants))
    async with database.write() as connection:
        await connection.execute(tenants.insert(), TENANT)
    async with database.read() as connection:
        assert 1 == await connection.scalar(select(func.count()).select_from(tenants))
    await database.close()


async def test_a_reader_sees_one_moment(store_url: str) -> None:
    database = await Database.open(store_url)
    async with database.read() as reader:
        assert "0" == await reader.scalar(select(values.c.value).where(values.c.name == "version"))
        async with database.write() as writer:
            await writer.execute(values.update().values(value="7"))
            await writer.execute(tenants.insert(), TENANT)
        assert 0 == await reader.scalar(select(func.count()).select_from(tenants))
        assert "0" == await reader.scalar(select(values.c.value).where(values.c.name == "version"))
    await database.close()


async def test_faults_of_the_caller_are_not_the_store_s(store_url: str) -> None:
    database = await Database.open(store_url)
    key = {"id": "k", "tenant": "nobody", "name": "n", "digest": "d", "created_unix_s": 1}
    with pytest.raises(IntegrityError):
        async with database.write() as connection:
            await connection.execute(api_keys.insert(), key)  # of a tenant that there is not
    async with database.write() as connection:
        await connection.execute(tenants.insert(), TENANT)
        again = database.insert(tenants).on_conflict_do_nothing(index_elements=["name"])
        assert 0 == (await connection.execute(again, TENANT)).rowcount
    await database.close()


def test_processes_that_open_an_empty_store_at_once_all_find_it_whole(store_url: str) -> None:
    command = [sys.executable, "-W", "error", "-c", OPEN_ALONE, store_url]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [(0, "")] * 4 == [(process.wait(60), process.communicate()[1]) for process in processes]

    async def found() -> list[tuple[str, str]]:
        database = await Database.open(store_url)
        async with database.read() as connection:
            rows = [(row.name, row.value) for row in await connection.execute(select(values))]
        await database.close()
        return rows

    assert [("version", "0")] == asyncio.run(found())


async def test_tasks_that_use_an_empty_store_at_once_all_find_it_whole(store_url: str) -> None:
    databases = [Database(store_url) for _ in range(4)]

    async def add(database: Database, name: str) -> None:
        async with database.write() as connection:
            await connection.execute(tenants.insert(), {**TENANT, "name": name})

    async with asyncio.TaskGroup() as tasks:
        for number, database in enumerate(databases * 3):
            tasks.create_task(add(database, f"t{number}"))
    async with databases[0].read() as connection:
        assert 12 == await connection.scalar(select(func.count()).select_from(tenants))
    for database in databases:
        await database.close()


async def test_a_new_file_that_another_process_keeps_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    asyncio.get_running_loop().call_later(0.2, other.rollback)
    database = await Database.open(f"sqlite:///{path}")
    async with database.read() as connection:
        assert "wal" == await connection.scalar(text("PRAGMA journal_mode"))
    await database.close()
    other.close()


async def test_opening_a_file_leaves_the_locks_of_others_in_this_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'gateway.db'}"
    first = await Database.open(url)
    async with first.write():
        second = Database(url)
        await second.prepare()
        change = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1], timeout=0).execute('PRAGMA journal_mode = DELETE'))"
        command = [sys.executable, "-c", change, str(tmp_path / "gateway.db")]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert "database is locked" in done.stderr, done.stdout
        await second.close()
    await first.close()


async def test_a_store_of_a_newer_version_is_refused_and_left_alone(store_url: str) -> None:
    database = await Database.open(store_url)
    async with database.write() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await database.close()

    with pytest.raises(StoreVersionError, match=r"step `9999`, which this version does not know") as caught:
        await Database.open(store_url)
    assert PASSWORD not in str(caught.value)


async def test_files_are_their_owner_s_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    path = tmp_path / "mine" / "var" / "deep" / "gateway.db"
    database = await Database.open(f"sqlite:///{path}")
    async with database.write() as connection:
        await connection.execute(tenants.insert(), TENANT)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    await database.close()

    assert {"gateway.db": 0o600, "gateway.db-wal": 0o600, "gateway.db-shm": 0o600} == modes
    assert [0o700, 0o700, 0o755] == [stat.S_IMODE(folder.stat().st_mode) for folder in list(path.parents)[:3]]


async def test_in_memory_is_one_database_for_all_tasks() -> None:
    database = await Database.open("sqlite://")

    async def add(name: str) -> None:
        async with database.write() as connection:
            await connection.execute(tenants.insert(), {**TENANT, "name": name})

    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(add(f"t{number}"))
    async with database.read() as connection:
        assert 20 == await connection.scalar(select(func.count()).select_from(tenants))
    await database.close()


async def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("This is no database, and it is long enough to be looked at as one. " * 20)
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnusableError, match="not a database"):
        await Database.open(f"sqlite:///{tmp_path}/text")
    with pytest.raises(StoreUnusableError, match=r"Not a directory|File exists"):
        await Database.open(f"sqlite:///{tmp_path}/file/gateway.db")
    with pytest.raises(StoreUnusableError, match=r"Is a directory; name a file that can be one in `storage\.ledger_url`"):
        await Database.open(f"sqlite:///{tmp_path}")


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOENT, errno.EACCES])
async def test_a_place_where_no_folder_can_be_made_is_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Nobody waits for a read-only root to become another."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StoreUnusableError, match=os.strerror(number)):
        await Database.open(f"sqlite:///{tmp_path}/var/gateway.db")


@pytest.mark.parametrize(
    "url",
    ["", "gateway.db", "mysql://u:hidden@host/db", "postgresql+psycopg://u:hidden@host/db", "postgresql://u:hidden@host:port/db"],
)
async def test_urls_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(StoreError, match="sqlite:///path") as caught:
        Database(url)
    assert "hidden" not in str(caught.value)


async def test_a_locked_file_is_away_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_S", 0.05)
    database = await Database.open(f"sqlite:///{tmp_path}/gateway.db")
    other = sqlite3.connect(tmp_path / "gateway.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreAwayError, match="database is locked"):
        async with database.write():
            pass
    async with database.read() as connection:  # readers don't mind
        assert 0 == await connection.scalar(select(func.count()).select_from(tenants))
    other.execute("ROLLBACK")
    other.close()
    async with database.write() as connection:
        await connection.execute(tenants.insert(), TENANT)
    await database.close()


async def test_nobody_listening_and_wrong_passwords_are_away_without_the_password(postgres_server: Postgres) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    urls = {
        f"postgresql://gateway:hidden@127.0.0.1:{port}/x?password=hidden": "refused|failed",
        postgres_server.url(password="hidden"): "password authentication failed",
        postgres_server.url("no_such_database"): "no_such_database",
    }
    for url, reason in urls.items():
        with pytest.raises(StoreAwayError, match=reason) as caught:
            await Database.open(url)
        assert not re.search(f"hidden|{PASSWORD}", str(caught.value))
        assert caught.value.__cause__ is None
        assert "***" in str(caught.value)


async def test_a_server_that_stops_is_away_and_a_started_one_is_used_again(own_postgres: Postgres) -> None:
    database = await Database.open(own_postgres.new_database())
    own_postgres.stop()
    for _ in range(2):
        with pytest.raises(StoreAwayError):
            async with database.write():
                pass
    own_postgres.start()
    async with database.write() as connection:
        await connection.execute(tenants.insert(), TENANT)

    async def cut_in_the_middle(name: str, *, says_more: bool) -> None:
        async with database.write() as connection:
            await connection.execute(tenants.insert(), {**TENANT, "name": name})
            own_postgres.stop()
            if says_more:
                await connection.execute(tenants.insert(), {**TENANT, "name": f"{name}-2"})

    for says_more in (False, True):
        with pytest.raises(StoreAwayError):
            await cut_in_the_middle("lost", says_more=says_more)
        own_postgres.start()
    async with database.read() as connection:
        assert ["acme"] == list(await connection.scalars(select(tenants.c.name)))
    await database.close()


async def test_a_server_that_hangs_is_away_in_time(own_postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "CONNECT_TIMEOUT_S", 0.3)
    url = own_postgres.new_database()
    used = await Database.open(url, command_timeout_s=0.3)
    fresh = Database(url)
    own_postgres.signal(signal.SIGSTOP)
    processes = own_postgres.signal_sessions(signal.SIGSTOP)
    try:
        for database in (used, fresh):
            with pytest.raises(StoreAwayError, match="did not answer in time"):
                async with database.write():
                    pass
    finally:
        own_postgres.signal(signal.SIGCONT)
        own_postgres.signal_sessions(signal.SIGCONT)
    assert processes > 0
    for database in (used, fresh):
        async with database.read() as connection:
            assert "0" == await connection.scalar(select(values.c.value))
        await database.close()


async def test_a_store_that_is_away_at_first_is_made_when_it_is_there(own_postgres: Postgres) -> None:
    url = own_postgres.new_database()
    own_postgres.stop()
    database = Database(url)
    with pytest.raises(StoreAwayError):
        async with database.read():
            pass
    own_postgres.start()
    async with database.read() as connection:
        assert "0" == await connection.scalar(select(values.c.value))
    await database.close()


async def test_transactions_that_are_cancelled_leave_nothing_and_hold_nothing(store_url: str) -> None:
    database = await Database.open(store_url)
    chance = random.Random(7)

    async def add(name: str) -> None:
        async with database.write() as connection:
            await connection.execute(tenants.insert(), {**TENANT, "name": name})
            await connection.execute(tenants.insert(), {**TENANT, "name": f"{name}-2"})

    for number in range(40):
        task = asyncio.ensure_future(add(f"t{number}"))
        for _ in range(chance.randrange(40)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await asyncio.wait_for(add("last"), 10)
    async with database.read() as connection:
        names = set(await connection.scalars(select(tenants.c.name)))
    await database.close()

    assert {name.removesuffix("-2") for name in names} == {name for name in names if not name.endswith("-2")}
    assert {f"{name.removesuffix('-2')}-2" for name in names} == {name for name in names if name.endswith("-2")}
    assert "last" in names


async def test_an_error_of_the_database_tells_nothing_of_what_was_written(store_url: str) -> None:
    database = await Database.open(store_url)
    secret = "the-secret-of-" + "all-caches"

    async def write() -> None:
        async with database.write() as connection:
            await connection.execute(values.insert().values(name="cache_secret", value=secret))

    await write()
    with pytest.raises(IntegrityError) as caught:
        await write()
    await database.close()
    assert "INSERT INTO" in str(caught.value)
    assert secret not in str(caught.value)
