"""Tenants and keys as the store had them at one moment.

Invariant: never changed after it is made; a change is another snapshot, so that whoever holds one sees no half of a change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from server.context import Tenant


@dataclass(slots=True, frozen=True)
class Key:
    """A key that may be used until `expires_unix_s` (None: for ever). `digest`: SHA-256 of the secret, 32 bytes."""

    id: str
    tenant: Tenant
    digest: bytes = field(repr=False)
    expires_unix_s: int | None = None


@dataclass(slots=True, frozen=True)
class Snapshot:
    """All tenants by name, and the keys that are not revoked by their digests. `version` counts the store's changes."""

    version: int = 0
    tenants: Mapping[str, Tenant] = field(default_factory=lambda: MappingProxyType({}))
    keys: Mapping[bytes, Key] = field(default_factory=lambda: MappingProxyType({}), repr=False)
