"""Tenants and keys in the store: the one way in which the command line, the admin API and the configuration change them.

Invariants: every change raises the store's version in its own transaction, so that replicas see it; secrets are returned once and
not kept. Changes wait for each other, in whichever process: each first takes the lock of the version's row.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import BigInteger, Row, Text, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from server.clock import Clock
from server.errors import ConflictError, InvalidRequestError, NotFoundError
from server.quoting import shown
from server.sections import TenantSettings
from server.setting_types import TENANT_NAME_RULE, TenantName
from server.store.database import Database
from server.store.tables import api_keys, tenants, values
from server.tenancy.keys import OPEN_TENANT, digest_of, new_key
from server.tenancy.rows import Changes, KeyInfo, TenantInfo
from server.tenancy.snapshot import Key, Snapshot

FIRST_TENANT: Final = OPEN_TENANT.name
MAX_LIFETIME_S: Final = 100 * 366 * 24 * 3600
MAX_KEY_NAME_CHARS: Final = 64
MAX_LISTED: Final = 20
NAME: Final[TypeAdapter[str]] = TypeAdapter(TenantName)


class Registry:
    """Tenants and keys of one store. Every method raises `StoreError` where the store can't be used."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def version(self) -> int:
        """How often tenants or keys have changed."""
        async with self._database.read() as connection:
            return int(await connection.scalar(select(values.c.value).where(values.c.name == "version")) or 0)

    async def snapshot(self) -> Snapshot:
        """Everything that is needed to judge a key, of one moment."""
        columns = (api_keys.c.id, api_keys.c.tenant, api_keys.c.digest, api_keys.c.expires_unix_s)
        async with self._database.read() as connection:
            version = int(await connection.scalar(select(values.c.value).where(values.c.name == "version")) or 0)
            tenant_rows = (await connection.execute(select(tenants))).all()
            key_rows = (await connection.execute(select(*columns).where(api_keys.c.revoked_unix_s.is_(None)))).all()
        # Thousands of keys take tens of milliseconds, for which no stream should wait.
        return await asyncio.to_thread(_snapshot, version, tenant_rows, key_rows)

    async def tenants(self) -> list[TenantInfo]:
        """All tenants, by name."""
        async with self._database.read() as connection:
            return [TenantInfo.of(row) for row in await connection.execute(select(tenants).order_by(tenants.c.name))]

    async def check_tenant(self, name: str) -> None:
        """Raise `NotFoundError` where there is no such tenant."""
        async with self._database.read() as connection:
            await _check_tenant(connection, name)

    async def apply_tenants(self, wanted: Mapping[str, TenantSettings]) -> Changes:
        """Create the tenants that are missing, give the others these settings; those that are not named stay. All or nothing.

        Raises `InvalidRequestError` for a name that is none.
        """
        for name in wanted:
            _check_tenant_name(name)
        changes, now = Changes(), self._clock.unix_s()
        async with self._change() as connection:
            known = {row.name: TenantInfo.of(row) for row in await connection.execute(select(tenants))}
            for name, settings in wanted.items():
                if name in known and known[name].settings == settings:
                    changes.unchanged.append(name)
                    continue
                row = {"settings": settings.model_dump_json(exclude_defaults=True), "updated_unix_s": now}
                if name in known:
                    await connection.execute(tenants.update().where(tenants.c.name == name), row)
                    changes.changed.append(name)
                else:
                    await connection.execute(tenants.insert(), {"name": name, "created_unix_s": now, **row})
                    changes.created.append(name)
            if changes.created or changes.changed:
                await _raise_version(connection)
        return changes

    async def keys(self, tenant: str | None = None) -> list[KeyInfo]:
        """All keys, or a tenant's, oldest first, those that are refused among them. Raises `NotFoundError`."""
        wanted = select(api_keys).order_by(api_keys.c.created_unix_s, api_keys.c.id)
        async with self._database.read() as connection:
            if tenant is not None:
                await _check_tenant(connection, tenant)
                wanted = wanted.where(api_keys.c.tenant == tenant)
            return [KeyInfo.of(row) for row in await connection.execute(wanted)]

    async def create_key(self, tenant: str, name: str = "", expires_in_s: int | None = None) -> tuple[KeyInfo, str]:
        """A new key of a tenant and its secret, which nobody can be told again. `expires_in_s` None: it does not expire.

        Raises `NotFoundError` for an unknown tenant, `InvalidRequestError` for a name or a lifetime that is none.
        """
        if not name.isprintable() or len(name) > MAX_KEY_NAME_CHARS:
            raise InvalidRequestError(
                f"`{shown(name)}` is no name of a key; use at most {MAX_KEY_NAME_CHARS} printable characters", param="name"
            )
        _check_seconds(expires_in_s, "expires_in_s", least=1)
        async with self._change() as connection:
            await _check_tenant(connection, tenant)
            return await self._insert_key(connection, tenant, name, expires_in_s)

    async def rotate_key(self, key_id: str, overlap_s: int) -> tuple[KeyInfo, str]:
        """A new key in place of an old one, and its secret. The old one works `overlap_s` longer, never past its own end.

        The new one has the old one's tenant and name, and from now on as long to live as that had when it was made. Raises
        `NotFoundError`, or `ConflictError` for a key that is refused already.
        """
        _check_seconds(overlap_s, "overlap_s", least=0)
        now = self._clock.unix_s()
        async with self._change() as connection:
            row = await _key_row(connection, key_id)
            state = KeyInfo.of(row).state(now)
            if state != "active":
                raise ConflictError(f"key `{row.id}` is {state}; create a new one for tenant `{row.tenant}`")
            ends = now + overlap_s if row.expires_unix_s is None else min(row.expires_unix_s, now + overlap_s)
            await connection.execute(api_keys.update().where(api_keys.c.id == row.id), {"expires_unix_s": ends})
            return await self._insert_key(connection, row.tenant, row.name, row.lifetime_s)

    async def revoke_key(self, key_id: str) -> KeyInfo:
        """Refuse a key from now on; a second time changes nothing. Raises `NotFoundError`."""
        async with self._change() as connection:
            row = await _key_row(connection, key_id)
            if row.revoked_unix_s is None:
                await connection.execute(
                    api_keys.update().where(api_keys.c.id == row.id), {"revoked_unix_s": self._clock.unix_s()}
                )
                await _raise_version(connection)
            return KeyInfo.of(await _key_row(connection, key_id))

    async def ensure_first_tenant(self) -> str | None:
        """In a store without any tenant: make one with a key, whose secret is returned; once, however many processes start."""
        async with self._change() as connection:
            if await connection.scalar(select(func.count()).select_from(tenants)):
                return None
            now = self._clock.unix_s()
            first = {"name": FIRST_TENANT, "settings": "{}", "created_unix_s": now, "updated_unix_s": now}
            await connection.execute(tenants.insert(), first)
            return (await self._insert_key(connection, FIRST_TENANT, "first", None))[1]

    async def cache_secret(self) -> bytes:
        """What prefix-cache salts are derived from: 32 random bytes, made once, the same for every replica."""
        wanted = select(values.c.value).where(values.c.name == "cache_secret")
        async with self._database.read() as connection:
            known = await connection.scalar(wanted)
        if known is None:
            async with self._change() as connection:
                known = await connection.scalar(wanted)
                if known is None:
                    known = secrets.token_hex(32)
                    await connection.execute(values.insert(), {"name": "cache_secret", "value": known})
        return bytes.fromhex(known)

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that no other change runs beside."""
        async with self._database.write() as connection:
            await connection.execute(select(values.c.value).where(values.c.name == "version").with_for_update())
            yield connection

    async def _insert_key(
        self, connection: AsyncConnection, tenant: str, name: str, lifetime_s: int | None
    ) -> tuple[KeyInfo, str]:
        secret, key_id, now = new_key(), secrets.token_hex(6), self._clock.unix_s()
        row = {
            "id": key_id,
            "tenant": tenant,
            "name": name,
            "digest": digest_of(secret.encode()).hex(),
            "created_unix_s": now,
            "lifetime_s": lifetime_s,
            "expires_unix_s": None if lifetime_s is None else now + lifetime_s,
        }
        await connection.execute(api_keys.insert(), row)
        await _raise_version(connection)
        return KeyInfo.of(await _key_row(connection, key_id)), secret


def _snapshot(version: int, tenant_rows: Sequence[Any], key_rows: Sequence[Any]) -> Snapshot:
    by_name = {info.name: info.tenant() for info in map(TenantInfo.of, tenant_rows)}
    keys = (Key(id, by_name[tenant], bytes.fromhex(digest), expires) for id, tenant, digest, expires in key_rows)
    return Snapshot(version, by_name, {key.digest: key for key in keys})


async def _raise_version(connection: AsyncConnection) -> None:
    one_more = cast(cast(values.c.value, BigInteger) + 1, Text)
    await connection.execute(values.update().where(values.c.name == "version").values(value=one_more))


async def _check_tenant(connection: AsyncConnection, name: str) -> None:
    known = list(await connection.scalars(select(tenants.c.name).order_by(tenants.c.name)))
    if name not in known:
        raise NotFoundError(f"there is no tenant `{shown(name)}`; tenants are: {_listed(known)}", param="tenant")


async def _key_row(connection: AsyncConnection, key_id: str) -> Row[Any]:
    row = None
    if key_id.isascii() and key_id.isalnum():  # what no id can be is not looked for: databases refuse some characters
        row = (await connection.execute(select(api_keys).where(api_keys.c.id == key_id))).one_or_none()
    if row is None:
        known = list(await connection.scalars(select(api_keys.c.id).order_by(api_keys.c.created_unix_s, api_keys.c.id)))
        raise NotFoundError(f"there is no key `{shown(key_id)}`; keys are: {_listed(known)}", param="id")
    return row


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - MAX_LISTED
    return ", ".join(f"`{name}`" for name in names[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "") or "none"


def _check_tenant_name(name: str) -> None:
    try:
        NAME.validate_python(name, strict=True)
    except ValidationError:
        raise InvalidRequestError(f"`{shown(name)}` is no name of a tenant; {TENANT_NAME_RULE}", param="tenant") from None


def _check_seconds(seconds: int | None, param: str, *, least: int) -> None:
    if seconds is not None and not least <= seconds <= MAX_LIFETIME_S:
        raise InvalidRequestError(f"`{shown(seconds)}` is no number of seconds from {least} to 100 years", param=param)
