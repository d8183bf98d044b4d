"""Tenants and keys in the store, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from decimal import Decimal

import pytest
from sqlalchemy import select

from server.clock import ManualClock
from server.context import Budget, Limits, Tenant
from server.errors import ConflictError, InvalidRequestError, NotFoundError
from server.sections import BudgetSettings, LimitSettings, TenantSettings
from server.store.database import Database
from server.store.tables import METADATA, tenants
from server.tenancy.keys import KeyTable
from server.tenancy.registry import Registry
from server.tenancy.rows import Changes

HEAVY = TenantSettings(
    weight=4,
    models=["kimi-k3"],
    limits=LimitSettings(requests_per_minute=600, concurrent_requests=64),
    budget=BudgetSettings(tokens_per_day=50_000_000, usd_per_month=Decimal("900.10")),
    cache_group="shared",
)
FIRST_START = """
import asyncio, sys
from server.clock import SystemClock
from server.store.database import Database
from server.tenancy.registry import Registry
async def main():
    sys.stdin.readline()
    database = await Database.open(sys.argv[1])
    registry = Registry(database, SystemClock())
    print((await registry.cache_secret()).hex(), await registry.ensure_first_tenant())
    await database.close()
asyncio.run(main())
"""


async def keys_of(registry: Registry, clock: ManualClock) -> KeyTable:
    """As a gateway that has just looked."""
    keys = KeyTable(clock=clock)
    keys.load(await registry.snapshot())
    return keys


async def test_tenants_are_created_changed_and_left(registry: Registry, clock: ManualClock) -> None:
    assert Changes(created=["acme", "b"]) == await registry.apply_tenants({"acme": HEAVY, "b": TenantSettings()})
    made_s = clock.unix_s()
    clock.advance(10)
    again = {"b": TenantSettings(weight=1), "acme": HEAVY.model_copy(update={"weight": 2.0}), "c": TenantSettings()}
    assert Changes(created=["c"], changed=["acme"], unchanged=["b"]) == await registry.apply_tenants(again)

    assert [
        ("acme", again["acme"], made_s, made_s + 10),
        ("b", TenantSettings(), made_s, made_s),
        ("c", TenantSettings(), made_s + 10, made_s + 10),
    ] == [(info.name, info.settings, info.created_unix_s, info.updated_unix_s) for info in await registry.tenants()]


async def test_a_snapshot_has_tenants_as_the_gateway_knows_them(registry: Registry) -> None:
    await registry.apply_tenants({"acme": HEAVY, "b": TenantSettings()})

    assert {
        "b": Tenant("b"),
        "acme": Tenant(
            "acme",
            models=frozenset({"kimi-k3"}),
            cache_group="shared",
            weight=4.0,
            limits=Limits(requests_per_minute=600, concurrent_requests=64),
            budget=Budget(tokens_per_day=50_000_000, nano_usd_per_month=900_100_000_000),
        ),
    } == (await registry.snapshot()).tenants


async def test_every_change_and_nothing_else_raises_the_version(registry: Registry) -> None:
    seen = [await registry.version()]

    async def version_after(change: object) -> int:
        await change  # type: ignore[misc]
        seen.append(await registry.version())
        return seen[-1] - seen[-2]

    await registry.ensure_first_tenant()
    seen.append(await registry.version())
    assert seen[1] > seen[0]
    info, _ = await registry.create_key("default")
    assert await registry.version() > seen[-1]
    seen.append(await registry.version())
    assert 1 == await version_after(registry.apply_tenants({"b": TenantSettings()}))
    assert 0 == await version_after(registry.apply_tenants({"b": TenantSettings()}))
    assert 1 == await version_after(registry.rotate_key(info.id, 60))
    assert 1 == await version_after(registry.revoke_key(info.id))
    assert 0 == await version_after(registry.revoke_key(info.id))
    for reading in (registry.ensure_first_tenant, registry.cache_secret, registry.tenants, registry.keys, registry.snapshot):
        assert 0 == await version_after(reading())
    assert seen[-1] == (await registry.snapshot()).version


async def test_only_the_digest_of_a_key_is_stored(registry: Registry, database: Database) -> None:
    await registry.apply_tenants({"acme": HEAVY})
    info, secret = await registry.create_key("acme", "ci")
    async with database.read() as connection:
        rows = [row for table in METADATA.sorted_tables for row in (await connection.execute(select(table))).all()]

    assert secret not in repr(rows)
    assert hashlib.sha256(secret.encode()).hexdigest() in repr(rows)
    assert secret not in repr(info)
    assert info.id not in hashlib.sha256(secret.encode()).hexdigest()


async def test_a_key_works_until_it_expires(registry: Registry, clock: ManualClock) -> None:
    await registry.apply_tenants({"acme": HEAVY})
    info, secret = await registry.create_key("acme", "short", expires_in_s=60)
    forever, lasting = await registry.create_key("acme")
    keys = await keys_of(registry, clock)

    assert [(HEAVY.tenant("acme"), info.id), (HEAVY.tenant("acme"), forever.id)] == [
        keys.find(secret.encode()),
        keys.find(lasting.encode()),
    ]
    assert (clock.unix_s() + 60, None) == (info.expires_unix_s, forever.expires_unix_s)
    clock.advance(60)
    assert [None, (HEAVY.tenant("acme"), forever.id)] == [keys.find(secret.encode()), keys.find(lasting.encode())]
    assert {info.id: "expired", forever.id: "active"} == {key.id: key.state(clock.unix_s()) for key in await registry.keys()}


async def test_a_rotated_key_works_beside_its_successor_for_the_overlap(registry: Registry, clock: ManualClock) -> None:
    await registry.apply_tenants({"acme": HEAVY})
    old, old_secret = await registry.create_key("acme", "ci")
    new, new_secret = await registry.rotate_key(old.id, overlap_s=100)
    keys = await keys_of(registry, clock)

    assert ("acme", "ci", None) == (new.tenant, new.name, new.expires_unix_s)
    assert [True, True] == [keys.find(secret.encode()) is not None for secret in (old_secret, new_secret)]
    clock.advance(99)
    assert [True, True] == [keys.find(secret.encode()) is not None for secret in (old_secret, new_secret)]
    clock.advance(1)
    assert [False, True] == [keys.find(secret.encode()) is not None for secret in (old_secret, new_secret)]


@pytest.mark.parametrize(("overlap_s", "old_ends_in_s"), [(0, 0), (30, 30), (50, 50), (51, 50), (10**9, 50)])
async def test_rotation_never_lengthens_a_life(
    registry: Registry, clock: ManualClock, overlap_s: int, old_ends_in_s: int
) -> None:
    await registry.apply_tenants({"acme": HEAVY})
    old, _ = await registry.create_key("acme", expires_in_s=90)
    clock.advance(40)
    new, _ = await registry.rotate_key(old.id, overlap_s)
    now = clock.unix_s()

    assert {old.id: now + old_ends_in_s, new.id: now + 90} == {key.id: key.expires_unix_s for key in await registry.keys("acme")}
    if old_ends_in_s:  # once more: the successor of a key that is on its way out lives as long as any
        third, _ = await registry.rotate_key(old.id, 5)
        assert now + 90 == third.expires_unix_s


async def test_a_revoked_key_is_refused_and_stays_in_the_list(registry: Registry, clock: ManualClock) -> None:
    await registry.apply_tenants({"acme": HEAVY})
    info, secret = await registry.create_key("acme")
    revoked = await registry.revoke_key(info.id)
    clock.advance(5)

    assert revoked == await registry.revoke_key(info.id)
    assert clock.unix_s() - 5 == revoked.revoked_unix_s
    assert (await keys_of(registry, clock)).find(secret.encode()) is None
    assert [revoked] == await registry.keys()
    with pytest.raises(ConflictError, match=f"key `{info.id}` is revoked; create a new one for tenant `acme`"):
        await registry.rotate_key(info.id, 60)


async def test_an_expired_key_can_t_be_rotated(registry: Registry, clock: ManualClock) -> None:
    await registry.apply_tenants({"acme": HEAVY})
    info, _ = await registry.create_key("acme", expires_in_s=1)
    clock.advance(1)
    with pytest.raises(ConflictError, match="expired"):
        await registry.rotate_key(info.id, 60)


async def test_what_there_is_not_is_named_with_what_there_is(registry: Registry) -> None:
    with pytest.raises(NotFoundError, match="no tenant `acme`; tenants are: none"):
        await registry.create_key("acme")
    await registry.apply_tenants({f"t{number:02}": TenantSettings() for number in range(22)})
    info, _ = await registry.create_key("t00")
    with pytest.raises(NotFoundError, match=r"no tenant `x`; tenants are: `t00`, .*`t19` and 2 more$"):
        await registry.keys("x")
    for unknown in ("x", "", "a\0b", "\ud800", "k" * 100_000, "'; DROP TABLE tenants"):
        with pytest.raises(NotFoundError, match=f"; keys are: `{info.id}`$") as caught:
            await registry.rotate_key(unknown, 60)
        assert len(caught.value.message) < 200
        with pytest.raises(NotFoundError):
            await registry.revoke_key(unknown)


async def test_names_and_times_that_are_none_are_refused(registry: Registry) -> None:
    await registry.apply_tenants({"acme": HEAVY})
    for name in ("", "-a", "a b", "a/b", "a\n", "ä", "x" * 65, "\0"):
        with pytest.raises(InvalidRequestError, match="is no name of a tenant"):
            await registry.apply_tenants({"good": TenantSettings(), name: TenantSettings()})
    for name in ("a\nb", "\0", "x" * 65, "\x1b[2J"):
        with pytest.raises(InvalidRequestError, match="is no name of a key"):
            await registry.create_key("acme", name)
    for seconds in (0, -1, 10**12):
        with pytest.raises(InvalidRequestError, match="is no number of seconds"):
            await registry.create_key("acme", expires_in_s=seconds)
    info, _ = await registry.create_key("acme", "Müller's laptop")
    for seconds in (-1, 10**12):
        with pytest.raises(InvalidRequestError, match="is no number of seconds"):
            await registry.rotate_key(info.id, seconds)

    assert ["acme"] == [tenant.name for tenant in await registry.tenants()]
    assert [info] == await registry.keys()


async def test_settings_of_another_version_shut_their_tenant_out_and_no_other(registry: Registry, database: Database) -> None:
    await registry.apply_tenants({"acme": HEAVY, "b": TenantSettings()})
    async with database.write() as connection:
        await connection.execute(tenants.update().where(tenants.c.name == "acme").values(settings='{"speed": "ludicrous"}'))

    assert {"acme": Tenant("acme", suspended=True), "b": Tenant("b")} == (await registry.snapshot()).tenants
    assert Changes(changed=["acme"]) == await registry.apply_tenants({"acme": HEAVY})
    assert HEAVY.tenant("acme") == (await registry.snapshot()).tenants["acme"]


async def test_the_first_tenant_is_made_in_an_empty_store_only(registry: Registry, clock: ManualClock) -> None:
    secret = await registry.ensure_first_tenant()
    assert secret is not None
    assert Tenant("default") == (await keys_of(registry, clock)).find(secret.encode())[0]
    assert await registry.ensure_first_tenant() is None
    assert 1 == len(await registry.keys())


async def test_where_tenants_were_applied_none_is_made(registry: Registry) -> None:
    await registry.apply_tenants({"acme": HEAVY})
    assert await registry.ensure_first_tenant() is None
    assert [] == await registry.keys()


def test_two_first_starts_make_one_tenant_and_one_secret(store_url: str) -> None:
    command = [sys.executable, "-W", "error", "-c", FIRST_START, store_url]
    starts = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for start in starts:
        assert start.stdin is not None
        start.stdin.write("go\n")
        start.stdin.flush()
    cache_secrets, keys = zip(*(start.communicate(timeout=60)[0].split() for start in starts), strict=True)

    assert 1 == len(set(cache_secrets))
    assert 64 == len(cache_secrets[0])
    assert 2 == keys.count("None")


async def test_changes_at_once_are_all_made(store_url: str, database: Database, clock: ManualClock) -> None:
    others = [await Database.open(store_url) for _ in range(2)]
    registries = [Registry(each, clock) for each in (database, *others)]
    await registries[0].apply_tenants({"acme": HEAVY})
    before = await registries[0].version()

    async def change(number: int) -> None:
        registry = registries[number % 3]
        await registry.apply_tenants({"acme": HEAVY.model_copy(update={"weight": float(number + 1)}), f"t{number}": HEAVY})
        info, _ = await registry.create_key(f"t{number}")
        await registry.rotate_key(info.id, 60)

    async with asyncio.TaskGroup() as tasks:
        for number in range(12):
            tasks.create_task(change(number))
    snapshot = await registries[0].snapshot()
    for each in others:
        await each.close()

    assert {"acme", *(f"t{number}" for number in range(12))} == set(snapshot.tenants)
    assert 24 == len(snapshot.keys)
    assert before + 36 == snapshot.version


async def test_one_creates_a_tenant_that_two_apply_at_once(store_url: str, database: Database, clock: ManualClock) -> None:
    other = await Database.open(store_url)
    wanted = {f"t{number}": TenantSettings() for number in range(50)}
    one, two = await asyncio.gather(*(Registry(each, clock).apply_tenants(wanted) for each in (database, other)))
    await other.close()

    assert sorted([one.created, two.created]) == [[], list(wanted)]
    assert sorted([one.unchanged, two.unchanged]) == [[], list(wanted)]
