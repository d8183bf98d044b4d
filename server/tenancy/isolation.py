"""Prefix-cache isolation: the salt that keeps one cache group's entries from every other's.

Invariant: a salt is never empty (an empty one would mean the shared cache) and can't be guessed or chosen by a client.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from server.context import Tenant


class CacheSalts:
    """Derives each cache group's salt from a secret: HMAC-SHA-256, url-safe, 43 characters."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(32)
        self._by_group: dict[str, str] = {}

    def of(self, tenant: Tenant) -> str:
        """The salt of the tenant's cache group; a tenant without one is a group of its own."""
        group = f"group:{tenant.cache_group}" if tenant.cache_group else f"tenant:{tenant.name}"
        salt = self._by_group.get(group)
        if salt is None:
            digest = hmac.new(self._secret, group.encode(), hashlib.sha256).digest()
            salt = self._by_group[group] = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        return salt
