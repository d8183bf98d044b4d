CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
) ;
CREATE TABLE tenants (
    name TEXT NOT NULL,
    settings TEXT NOT NULL,
    created_unix_s BIGINT NOT NULL,
    updated_unix_s BIGINT NOT NULL,
    CONSTRAINT pk_tenants PRIMARY KEY (name)
) ;
CREATE TABLE api_keys (
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    created_unix_s BIGINT NOT NULL,
    lifetime_s BIGINT,
    expires_unix_s BIGINT,
    revoked_unix_s BIGINT,
    CONSTRAINT pk_api_keys PRIMARY KEY (id),
    CONSTRAINT uq_api_keys_digest UNIQUE (digest),
    CONSTRAINT fk_api_keys_tenant_tenants FOREIGN KEY(tenant) REFERENCES tenants (name)
) ;
CREATE TABLE "values" (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    CONSTRAINT pk_values PRIMARY KEY (name)
) ;
CREATE TABLE ledger (
    id TEXT NOT NULL,
    request_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    key_id TEXT,
    model TEXT NOT NULL,
    api TEXT NOT NULL,
    arrived_unix_ms BIGINT NOT NULL,
    admitted_unix_ms BIGINT,
    first_token_unix_ms BIGINT,
    ended_unix_ms BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    reasoning_tokens BIGINT NOT NULL,
    discarded_tokens BIGINT NOT NULL,
    draft_tokens BIGINT NOT NULL,
    accepted_tokens BIGINT NOT NULL,
    images BIGINT NOT NULL,
    finish_reason TEXT,
    outcome TEXT NOT NULL,
    cost_nano_usd BIGINT NOT NULL,
    CONSTRAINT pk_ledger PRIMARY KEY (id)
) ;
CREATE INDEX ix_ledger_tenant_ended_unix_ms ON ledger (tenant, ended_unix_ms) ;
CREATE INDEX ix_ledger_ended_unix_ms ON ledger (ended_unix_ms)
