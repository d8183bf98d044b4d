"""Tenants, keys, values and the ledger."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """From an empty database."""
    op.create_table(
        "tenants",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("created_unix_s", sa.BigInteger(), nullable=False),
        sa.Column("updated_unix_s", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_tenants"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("created_unix_s", sa.BigInteger(), nullable=False),
        sa.Column("lifetime_s", sa.BigInteger(), nullable=True),
        sa.Column("expires_unix_s", sa.BigInteger(), nullable=True),
        sa.Column("revoked_unix_s", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("digest", name="uq_api_keys_digest"),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name="fk_api_keys_tenant_tenants"),
    )
    values = op.create_table(
        "values",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_values"),
    )
    op.bulk_insert(values, [{"name": "version", "value": "0"}])
    kinds = ("input", "cached", "output", "reasoning", "discarded", "draft", "accepted")
    op.create_table(
        "ledger",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("api", sa.Text(), nullable=False),
        sa.Column("arrived_unix_ms", sa.BigInteger(), nullable=False),
        sa.Column("admitted_unix_ms", sa.BigInteger(), nullable=True),
        sa.Column("first_token_unix_ms", sa.BigInteger(), nullable=True),
        sa.Column("ended_unix_ms", sa.BigInteger(), nullable=False),
        *(sa.Column(f"{kind}_tokens", sa.BigInteger(), nullable=False) for kind in kinds),
        sa.Column("images", sa.BigInteger(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("cost_nano_usd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ledger"),
    )
    op.create_index("ix_ledger_tenant_ended_unix_ms", "ledger", ["tenant", "ended_unix_ms"])
    op.create_index("ix_ledger_ended_unix_ms", "ledger", ["ended_unix_ms"])
