"""API keys: which tenant a secret belongs to.

Role: step 3 of a request. Invariant: only SHA-256 digests are kept, and a lookup takes the same time for a key that is ours
and one that is not (the digest is computed either way, and a digest tells nothing about another that differs in one bit).
"""

from __future__ import annotations

import hashlib
import secrets

from server.context import Tenant

PREFIX = "k3gw-"
OPEN_TENANT = Tenant(name="default", cache_group="default")


def new_key() -> str:
    """A fresh key: 256 random bits behind a prefix that secret scanners can find."""
    return PREFIX + secrets.token_urlsafe(32)


def key_id(secret: str) -> str:
    """A short name of a key that can be shown and logged."""
    return hashlib.sha256(secret.encode()).hexdigest()[:12]


class KeyTable:
    """Digest of a key -> tenant and key id. With `open_tenant`, every request is that tenant's, key or not."""

    def __init__(self, open_tenant: Tenant | None = None) -> None:
        self._by_digest: dict[bytes, tuple[Tenant, str | None]] = {}
        self._open = (open_tenant, None) if open_tenant is not None else None

    def add(self, secret: str, tenant: Tenant) -> None:
        """Let `secret` act for `tenant`. The secret itself is not kept."""
        self._by_digest[hashlib.sha256(secret.encode()).digest()] = (tenant, key_id(secret))

    def find(self, secret: bytes | None) -> tuple[Tenant, str | None] | None:
        """Tenant and key id of `secret`, or None."""
        found = self._by_digest.get(hashlib.sha256(secret or b"").digest())
        return self._open if self._open is not None else found
