"""The sections of the configuration: every setting's name, meaning, range and default.

Role: bottom layer. `settings.py` reads the file, the environment and flags into these; stores read tenants back into them.
"""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from server.context import Budget, Limits, Tenant
from server.media_sections import TenantMediaSettings
from server.setting_types import Count, Name, Place, Secret, Section, Text, Usd

NANO_PER_USD = 1_000_000_000
MEMORY_URL = "memory://"
_DATABASE_URLS: Final = "`sqlite:///path` or `postgresql://user:password@host/name`"
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[!-~](?:[ \t!-~]*[!-~])?")


class HttpSettings(Section):
    """How the gateway listens. `workers`: so many processes serve, on one engine; more than one only where one is not enough."""

    host: Text = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    workers: int = Field(default=1, ge=1, le=64)
    max_body_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    keepalive_interval_s: float = Field(default=10.0, gt=0)
    write_timeout_s: float = Field(default=60.0, gt=0)
    drain_timeout_s: int = Field(default=30, ge=0)


class EngineSettings(Section):
    """Which engine generates the tokens.

    `draft_model_path`: a folder with the profile's draft model, in place of its name on the hub. `check_hardware`: whether a
    machine that can't hold the profile is refused; to be turned off where the vendor's tools are not to be believed.
    `known_texts_bytes`: what the token ids of texts may take that are kept, so that a conversation that comes again with one more
    turn is not encoded anew; a token takes 8. 0 keeps none.
    """

    kind: Literal["vllm", "scripted"] = "vllm"
    profile: Text = "cpu-demo"
    model_path: Place | None = None
    draft_model_path: Place | None = None
    check_hardware: bool = True
    overrides: dict[str, Any] = {}
    script: Place | None = None
    vocab: Place | None = None
    known_texts_bytes: int = Field(default=256 * 1024**2, ge=0)

    def check_scripted(self) -> None:
        """Raise `ValueError` for what the scripted engine does not take."""
        for name, value in self.overrides.items():
            if name not in ("context_length", "seats"):
                raise ValueError(f"engine.overrides.{name}: the scripted engine takes `context_length` and `seats`")
            if type(value) is not int or value < 1:
                raise ValueError(f"engine.overrides.{name}: `{value}`: must be a whole number above 0")
        if self.script is not None and not self.script.is_file():
            raise ValueError(f"engine.script: `{self.script}`: there is no such file")


class PriceSettings(Section):
    """US dollars per million tokens. Input that is found in the prefix cache costs `cached_input`, the rest `input`."""

    input: Usd = Decimal(0)
    cached_input: Usd = Decimal(0)
    output: Usd = Decimal(0)


class ModelSettings(Section):
    """One model by the name that clients send.

    `sampling`: which values clients may send; `open` takes the engine's ranges, `moonshot` refuses what hosted K3 refuses, `pin`
    ignores it. `grammar`: which answers are held to the form that was asked for; `strict` holds arguments of `strict` tools only.
    `tool_call_policy`: what becomes of a call that does not fit its schema; `retry` samples it again, up to `tool_call_retries`
    times. `usage_in_choice`: streams carry the token counts in the last choice, too, where Kimi's own clients look for them;
    unset: where `sampling` is `moonshot`. `price_per_million_tokens_usd`: what tenants are charged; its proportions are also
    how the fair queue weighs tokens.
    """

    aliases: list[str] = []
    format: Literal["kimi_k3", "plain"] = "kimi_k3"
    reasoning_field: Literal["both", "reasoning_content", "reasoning"] = "both"
    sampling: Literal["open", "moonshot", "pin"] = "open"
    grammar: Literal["off", "strict", "always"] = "always"
    tool_call_policy: Literal["report", "retry", "error"] = "report"
    tool_call_retries: int = Field(default=2, ge=1, le=10)
    usage_in_choice: bool | None = None
    price_per_million_tokens_usd: PriceSettings = PriceSettings()

    @field_validator("grammar", mode="before")
    @classmethod
    def _yaml_off(cls, grammar: Any) -> Any:
        return "off" if grammar is False else grammar  # YAML reads a bare `off` as false


class LimitSettings(Section):
    """What one tenant may do at once and in any minute; see `server.context.Limits`."""

    requests_per_minute: Count | None = None
    input_tokens_per_minute: Count | None = None
    uncached_input_tokens_per_minute: Count | None = None
    output_tokens_per_minute: Count | None = None
    concurrent_requests: Count | None = None
    max_context_tokens: Count | None = None


class BudgetSettings(Section):
    """What one tenant may spend in a calendar day and month, in UTC."""

    tokens_per_day: Count | None = None
    tokens_per_month: Count | None = None
    usd_per_day: Usd | None = None
    usd_per_month: Usd | None = None


class TenantSettings(Section):
    """One tenant, by name. Unset `models`: all. Unset `cache_group`: its prefix cache is shared with nobody."""

    weight: float = Field(default=1.0, ge=0.01, le=1000)
    models: list[str] | None = None
    limits: LimitSettings = LimitSettings()
    budget: BudgetSettings = BudgetSettings()
    cache_group: Name | None = None
    media: TenantMediaSettings = TenantMediaSettings()
    suspended: bool = False

    def tenant(self, name: str) -> Tenant:
        """The tenant that these settings describe."""
        budget = self.budget
        return Tenant(
            name=name,
            models=None if self.models is None else frozenset(self.models),
            cache_group=self.cache_group,
            weight=self.weight,
            limits=Limits(**self.limits.model_dump()),
            budget=Budget(
                tokens_per_day=budget.tokens_per_day,
                tokens_per_month=budget.tokens_per_month,
                nano_usd_per_day=None if budget.usd_per_day is None else int(budget.usd_per_day * NANO_PER_USD),
                nano_usd_per_month=None if budget.usd_per_month is None else int(budget.usd_per_month * NANO_PER_USD),
            ),
            media=self.media.limits(),
            suspended=self.suspended,
        )


class TenancySettings(Section):
    """Who may use the gateway. `off` opens it to everybody who can reach it, so it is refused unless bound to loopback.

    `key`: one key of the tenant `default` that needs no store. `admin_key` opens `/admin/v1` and `/metrics`, and is nobody's API
    key. `cache_secret`: what prefix-cache salts are derived from; unset: one that the store keeps. `reserved_fields`: what
    becomes of client fields that only the gateway may set (`cache_salt`, `priority`, `kv_transfer_params`, internal headers).
    """

    auth: Literal["keys", "off"] = "keys"
    key: Secret | None = None
    admin_key: Secret | None = None
    cache_secret: Secret | None = None
    reserved_fields: Literal["refuse", "ignore"] = "refuse"

    @field_validator("auth", mode="before")
    @classmethod
    def _yaml_off(cls, auth: Any) -> Any:
        return "off" if auth is False else auth  # YAML reads a bare `off` as false


class AdmissionSettings(Section):
    """Who waits, where and for how long.

    `reserved_seats` of the engine go only to tenants that hold fewer seats than that; unset: a sixteenth of the seats. What
    finds no seat waits, `max_queued_per_tenant` and `max_queued` requests at most, for `queue_timeout_s` at most. A whole request
    may take `request_timeout_s`. `prefix_quantum_tokens`: for how many tokens of service a tenant may be served out of turn, to
    use a prefix while it is in the cache. No seat is given while more than `max_kv_cache_usage` of the KV cache is taken.
    Requests that have not ended may hold `max_held_bytes` of bodies and fetched images, a quarter of it one tenant's.
    """

    reserved_seats: int | None = Field(default=None, ge=0)
    max_queued_per_tenant: int = Field(default=512, ge=1)
    max_queued: int = Field(default=4096, ge=1)
    queue_timeout_s: float = Field(default=120.0, gt=0)
    request_timeout_s: float = Field(default=3600.0, gt=0)
    prefix_quantum_tokens: int = Field(default=16384, ge=0)
    max_kv_cache_usage: float = Field(default=0.97, gt=0, le=1)
    max_held_bytes: Count = 4 * 1024**3


class StorageSettings(Section):
    """Where tenants, keys and the ledger are kept, and the counts that limits are held by.

    `ledger_url`: a database, `sqlite:///…` or `postgresql://…`. `spool_path`: a folder where ledger rows wait for it.
    `limits_url`: `memory://`, or `redis://…` where several replicas share their limits; `limits_away`: what happens to requests
    while that can't be reached: `open` counts in this process alone, `closed` refuses them.
    """

    ledger_url: str = "sqlite:///var/gateway.db"
    spool_path: Place = Path("var/spool")
    limits_url: str = MEMORY_URL
    limits_away: Literal["open", "closed"] = "open"

    @field_validator("ledger_url")
    @classmethod
    def _database(cls, url: str) -> str:
        if url.partition(":")[0] not in ("sqlite", "sqlite+aiosqlite", "postgresql", "postgresql+asyncpg"):
            raise ValueError(f"is no database; write {_DATABASE_URLS}")
        try:
            parts = urlsplit(url)
            _ = parts.port  # raises for what is none
        except ValueError as error:
            raise ValueError(f"is no URL: {str(error).partition(' as ')[0]}; write {_DATABASE_URLS}") from None
        if not parts.path.strip("/"):  # SQLite would keep it in memory, for each process another one; PostgreSQL would guess
            raise ValueError(f"names no database; write {_DATABASE_URLS}")
        return url

    @field_validator("limits_url")
    @classmethod
    def _limits_store(cls, url: str) -> str:
        if url != MEMORY_URL and url.partition(":")[0] not in ("redis", "rediss", "unix"):
            raise ValueError("is neither `memory://` nor `redis://host:port/number`")
        try:
            parts = urlsplit(url)
            _ = parts.port  # raises for what is none
        except ValueError as error:
            raise ValueError(f"is no URL: {str(error).partition(' as ')[0]}; write `redis://host:port/number`") from None
        if parts.scheme != "unix" and not (parts.path.strip("/").isdecimal() or parts.path in ("", "/")):
            raise ValueError("has no number behind the last `/`; write `redis://host:port/number`")  # it may have a password
        return url


class MetricsSettings(Section):
    """Who may read `/metrics` and `/dashboard`: `loopback` (this machine without a key) or `key` (nobody without one).

    They show all tenants, so a tenant's key opens neither: the admin key opens both, `key` the former. The first `max_tenants`
    that are active have series of their own, all others share those of `other`.
    """

    access: Literal["loopback", "key"] = "loopback"
    key: Secret | None = None
    max_tenants: int = Field(default=1000, ge=0, le=100_000)


class TracingSettings(Section):
    """Whether requests are traced, which, and where their spans go.

    `endpoint`: of a collector that takes OTLP over HTTP; `/v1/traces` is added where it has no path. `headers` go with every
    export. `sample_ratio` of the requests are traced; one whose `traceparent` says that its trace is sampled is traced anyway, as
    long as its tenant has had no more than `client_samples_per_minute` of these in a minute; one that says it is not, is not.
    `record_content`: spans have what was asked and answered.
    """

    exporter: Literal["off", "otlp"] = "off"
    endpoint: str = "http://localhost:4318/v1/traces"
    headers: dict[str, SecretStr] = {}
    service_name: Name = "k3-gateway"
    sample_ratio: float = Field(default=1.0, ge=0, le=1)
    client_samples_per_minute: int = Field(default=60, ge=0)
    record_content: bool = False

    @field_validator("exporter", mode="before")
    @classmethod
    def _yaml_off(cls, exporter: Any) -> Any:
        return "off" if exporter is False else exporter  # YAML reads a bare `off` as false

    @field_validator("headers")
    @classmethod
    def _sendable(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError("has a name that HTTP does not take; use letters, digits and `-`")
            if not _HEADER_VALUE.fullmatch(value.get_secret_value()):
                raise ValueError(f"`{name}`: has a value that HTTP does not take; use visible ASCII, and spaces only between")
        return headers

    @field_validator("endpoint")
    @classmethod
    def _collector(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
            raise ValueError("is no `http://host:port`; what a collector is to be told in secret goes into `tracing.headers`")
        return url.rstrip("/") + "/v1/traces" if parts.path in ("", "/") else url


class LogSettings(Section):
    """What is logged, to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"
