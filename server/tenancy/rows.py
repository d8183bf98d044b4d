"""Tenants and keys as the store has them, for those who show and change them.

Must not: hold a secret, or the digest of one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import structlog
from pydantic import ValidationError
from sqlalchemy import Row

from server.context import Tenant
from server.sections import TenantSettings

log = structlog.get_logger(__name__)


@dataclass(slots=True, frozen=True)
class TenantInfo:
    """A tenant as the store has it. `settings` is None where this version can't read them; its keys are refused then."""

    name: str
    settings: TenantSettings | None
    created_unix_s: int
    updated_unix_s: int

    @classmethod
    def of(cls, row: Row[Any]) -> TenantInfo:
        """From a row of `tenants`."""
        try:
            settings = TenantSettings.model_validate_json(row.settings)
        except ValidationError as error:
            what = ", ".join(".".join(map(str, detail["loc"])) for detail in error.errors())
            log.error("tenant_unreadable", tenant=row.name, settings=what, cure="apply it again with this version")
            settings = None
        return cls(row.name, settings, row.created_unix_s, row.updated_unix_s)

    def tenant(self) -> Tenant:
        """Who it is to the rest of the gateway."""
        return Tenant(self.name, suspended=True) if self.settings is None else self.settings.tenant(self.name)


@dataclass(slots=True, frozen=True)
class KeyInfo:
    """What may be shown of a key. `expires_unix_s`, `revoked_unix_s`: from when on it is refused, or None."""

    id: str
    tenant: str
    name: str
    created_unix_s: int
    expires_unix_s: int | None
    revoked_unix_s: int | None

    @classmethod
    def of(cls, row: Row[Any]) -> KeyInfo:
        """From a row of `api_keys`."""
        return cls(row.id, row.tenant, row.name, row.created_unix_s, row.expires_unix_s, row.revoked_unix_s)

    def state(self, now_unix_s: int) -> str:
        """`active`, `expired` or `revoked`."""
        if self.revoked_unix_s is not None:
            return "revoked"
        return "expired" if self.expires_unix_s is not None and self.expires_unix_s <= now_unix_s else "active"


@dataclass(slots=True, frozen=True)
class Changes:
    """What became of tenants that were applied, by name, in the order they were given."""

    created: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
