"""The tables of the store, as SQLAlchemy Core.

Role: the schema that this version of the code reads and writes. `migrations/` brings a database to it; a test holds both equal.
Must not: be changed without a migration. Times are whole units since 1970, in UTC; money is whole nano-dollars.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, ForeignKey, Index, MetaData, Table, Text

METADATA: Final = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    }
)
"""Complete once this module is imported; nothing adds to it."""

tenants: Final = Table(
    "tenants",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("settings", Text, nullable=False),  # `TenantSettings` as JSON
    Column("created_unix_s", BigInteger, nullable=False),
    Column("updated_unix_s", BigInteger, nullable=False),
)

api_keys: Final = Table(
    "api_keys",
    METADATA,
    Column("id", Text, primary_key=True),  # random, not derived from the secret
    Column("tenant", Text, ForeignKey("tenants.name"), nullable=False),
    Column("name", Text, nullable=False),
    Column("digest", Text, nullable=False, unique=True),  # SHA-256 of the secret in hex; the secret is nowhere
    Column("created_unix_s", BigInteger, nullable=False),
    Column("lifetime_s", BigInteger),  # what it was made for; a rotated key is replaced by one that lasts as long
    Column("expires_unix_s", BigInteger),
    Column("revoked_unix_s", BigInteger),
)

values: Final = Table(
    "values",
    METADATA,
    Column("name", Text, primary_key=True),  # `version` of tenants and keys, `cache_secret`
    Column("value", Text, nullable=False),
)

ledger: Final = Table(
    "ledger",
    METADATA,
    # No foreign keys: a row tells what happened, and stays true when a tenant or a key is gone.
    Column("id", Text, primary_key=True),  # made by the writer, so that a row that is sent twice is kept once
    Column("request_id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("key_id", Text),
    Column("model", Text, nullable=False),
    Column("api", Text, nullable=False),
    Column("arrived_unix_ms", BigInteger, nullable=False),
    Column("admitted_unix_ms", BigInteger),
    Column("first_token_unix_ms", BigInteger),
    Column("ended_unix_ms", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("discarded_tokens", BigInteger, nullable=False),
    Column("draft_tokens", BigInteger, nullable=False),
    Column("accepted_tokens", BigInteger, nullable=False),
    Column("images", BigInteger, nullable=False),
    Column("finish_reason", Text),
    Column("outcome", Text, nullable=False),
    Column("cost_nano_usd", BigInteger, nullable=False),
    Index("ix_ledger_tenant_ended_unix_ms", "tenant", "ended_unix_ms"),
    Index("ix_ledger_ended_unix_ms", "ended_unix_ms"),
)
