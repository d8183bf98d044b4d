"""Keys and salts."""

from __future__ import annotations

from server.context import Tenant
from server.tenancy.isolation import CacheSalts
from server.tenancy.keys import PREFIX, KeyTable, key_id, new_key


def test_a_key_finds_its_tenant_and_nothing_else_does() -> None:
    keys, acme = KeyTable(), Tenant("acme")
    secret = new_key()
    keys.add(secret, acme)

    assert keys.find(secret.encode()) == (acme, key_id(secret))
    assert [keys.find(other) for other in (None, b"", secret.encode()[:-1], secret.upper().encode(), new_key().encode())] == [
        None
    ] * 5


def test_keys_are_long_and_differ() -> None:
    made = {new_key() for _ in range(100)}

    assert len(made) == 100
    assert all(key.startswith(PREFIX) and len(key) == len(PREFIX) + 43 for key in made)


def test_the_table_does_not_keep_the_secret() -> None:
    keys = KeyTable()
    secret = new_key()
    keys.add(secret, Tenant("acme"))

    assert secret not in repr(vars(keys))


def test_salts_depend_on_secret_and_group_and_are_never_empty() -> None:
    one, other = CacheSalts(b"1" * 32), CacheSalts(b"2" * 32)
    tenants = [Tenant("a"), Tenant("b"), Tenant(""), Tenant("x", cache_group="a")]

    salts = [salts.of(tenant) for salts in (one, other) for tenant in tenants]
    assert len(set(salts)) == len(salts)
    assert all(0 < len(salt) < 128 and salt.isascii() for salt in salts)
    assert one.of(Tenant("p", cache_group="g")) == one.of(Tenant("q", cache_group="g"))
