"""Keys and salts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import SecretStr

from server.clock import ManualClock
from server.context import Tenant
from server.errors import OverloadedError
from server.tenancy.isolation import CacheSalts
from server.tenancy.keys import CONFIGURED, OPEN_TENANT, PREFIX, KeyTable, digest_of, new_key
from server.tenancy.snapshot import Key, Snapshot

ACME = Tenant("acme")


def snapshot(*keys: Key, version: int = 1) -> Snapshot:
    return Snapshot(version, {key.tenant.name: key.tenant for key in keys}, {key.digest: key for key in keys})


def key(secret: str, tenant: Tenant = ACME, **fields: object) -> Key:
    return replace(Key(f"id-{secret[-4:]}", tenant, digest_of(secret.encode())), **fields)


def test_a_key_finds_its_tenant_and_nothing_else_does() -> None:
    keys, secret = KeyTable(), new_key()
    keys.load(snapshot(key(secret, id="k1")))

    assert (ACME, "k1") == keys.find(secret.encode())
    others = (None, b"", secret.encode()[:-1], secret.upper().encode(), new_key().encode(), digest_of(secret.encode()), bytes(32))
    assert [None] * len(others) == [keys.find(other) for other in others]


def test_each_of_ten_thousand_keys_finds_its_own_tenant() -> None:
    made = {new_key(): Tenant(f"t{number % 100}") for number in range(10_000)}
    keys = KeyTable()
    keys.load(snapshot(*(key(secret, tenant, id=f"k{number}") for number, (secret, tenant) in enumerate(made.items()))))

    found = [keys.find(secret.encode()) for secret in made]
    assert [(tenant, f"k{number}") for number, tenant in enumerate(made.values())] == found
    assert [None] * 100 == [keys.find(new_key().encode()) for _ in range(100)]


def test_a_key_expires_when_its_time_has_come_without_a_new_snapshot() -> None:
    clock = ManualClock(1000)
    keys, secret = KeyTable(clock=clock), new_key()
    keys.load(snapshot(key(secret, expires_unix_s=1060)))

    clock.advance(59)
    assert keys.find(secret.encode()) is not None
    clock.advance(1)
    assert keys.find(secret.encode()) is None


def test_a_snapshot_takes_the_place_of_the_one_before() -> None:
    keys, old, new = KeyTable(), new_key(), new_key()
    keys.load(snapshot(key(old)))
    keys.load(snapshot(key(new, replace(ACME, weight=2.0)), version=7))

    assert keys.find(old.encode()) is None
    assert (replace(ACME, weight=2.0), f"id-{new[-4:]}") == keys.find(new.encode())
    assert replace(ACME, weight=2.0) == keys.tenant("acme")
    assert keys.tenant("nobody") is None
    assert 7 == keys.version


def test_before_the_store_was_reached_no_key_is_judged_but_the_configured_one() -> None:
    keys = KeyTable(awaits_store=True)
    keys.add("a-configured-key-0123", OPEN_TENANT)

    with pytest.raises(OverloadedError, match="store"):
        keys.find(new_key().encode())
    assert keys.find(None) is None
    assert keys.find(b"") is None
    assert keys.version is None
    assert (OPEN_TENANT, CONFIGURED) == keys.find(b"a-configured-key-0123")
    keys.load(Snapshot())
    assert keys.find(new_key().encode()) is None
    assert 0 == keys.version


def test_the_configured_key_acts_for_the_store_s_tenant_of_that_name() -> None:
    keys = KeyTable()
    keys.add("a-configured-key-0123", OPEN_TENANT)
    limited = Tenant("default", weight=3.0)

    assert (OPEN_TENANT, OPEN_TENANT) == (keys.find(b"a-configured-key-0123")[0], keys.tenant("default"))
    keys.load(Snapshot(1, {"default": limited}))
    assert (limited, CONFIGURED) == keys.find(b"a-configured-key-0123")
    assert limited == keys.tenant("default")


def test_another_configured_key_takes_the_place_of_the_first() -> None:
    keys = KeyTable()
    for secret in ("a-configured-key-0123", "another-configured-key"):
        keys.configure(SecretStr(secret))
        assert (OPEN_TENANT, CONFIGURED) == keys.find(secret.encode())
    assert keys.find(b"a-configured-key-0123") is None
    keys.configure(None)
    assert keys.find(b"another-configured-key") is None


def test_an_open_gateway_takes_everybody_for_one_tenant() -> None:
    keys = KeyTable(OPEN_TENANT, awaits_store=True)

    assert [(OPEN_TENANT, None)] * 3 == [keys.find(secret) for secret in (None, b"", new_key().encode())]
    keys.load(Snapshot(1, {"default": Tenant("default", weight=3.0)}))
    assert (Tenant("default", weight=3.0), None) == keys.find(None)
    assert Tenant("default", weight=3.0) == keys.tenant("default")


def test_keys_are_long_and_differ() -> None:
    made = {new_key() for _ in range(100)}

    assert len(made) == 100
    assert all(key.startswith(PREFIX) and len(key) == len(PREFIX) + 43 for key in made)


def test_the_table_does_not_keep_or_show_secrets() -> None:
    keys, secret = KeyTable(), new_key()
    keys.add(secret, Tenant("acme"))
    table = snapshot(key(secret, id="k1"))
    keys.load(table)

    assert secret not in repr(vars(keys))
    digest = digest_of(secret.encode())
    assert not any(shown in repr((table, key(secret, id="k1"))) for shown in (secret, digest.hex(), repr(digest)))


def test_salts_depend_on_secret_and_group_and_are_never_empty() -> None:
    one, other = CacheSalts(b"1" * 32), CacheSalts(b"2" * 32)
    tenants = [Tenant("a"), Tenant("b"), Tenant(""), Tenant("x", cache_group="a")]

    salts = [salts.of(tenant) for salts in (one, other) for tenant in tenants]
    assert len(set(salts)) == len(salts)
    assert all(0 < len(salt) < 128 and salt.isascii() for salt in salts)
    assert one.of(Tenant("p", cache_group="g")) == one.of(Tenant("q", cache_group="g"))
