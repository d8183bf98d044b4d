"""API keys: which tenant a secret belongs to.

Role: step 3 of a request. Invariant: only SHA-256 digests are kept, and a lookup takes the same time for a key that is ours
and one that is not (the digest is computed either way, and a digest tells nothing about another that differs in one bit).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping

from pydantic import SecretStr

from server.clock import Clock, SystemClock
from server.context import Tenant
from server.errors import OverloadedError
from server.tenancy.snapshot import Key, Snapshot

PREFIX = "k3gw-"
OPEN_TENANT = Tenant(name="default", cache_group="default")
CONFIGURED = "configured"
"""The id of a key that is in the settings, not in the store."""


def new_key() -> str:
    """A fresh key: 256 random bits behind a prefix that secret scanners can find."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(secret: bytes) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(secret).digest()


class KeyTable:
    """Digest of a key -> tenant and key id, by the last snapshot and the settings.

    With `open_tenant`, every request is that tenant's, key or not. With `awaits_store`, a key that the settings don't have can't
    be judged before the first snapshot; without, it is nobody's.
    """

    def __init__(self, open_tenant: Tenant | None = None, *, clock: Clock | None = None, awaits_store: bool = False) -> None:
        self._open = open_tenant
        self._clock = clock or SystemClock()
        self._awaits_store = awaits_store
        self._configured: dict[bytes, Key] = {}
        self._snapshot = Snapshot()
        self._nobody = Key("", Tenant(""), bytes(32))

    def add(self, secret: str, tenant: Tenant) -> None:
        """Let `secret` act for the tenant of that name, as it is in the store or else as given. The secret itself is not kept."""
        digest = digest_of(secret.encode())
        self._configured[digest] = Key(CONFIGURED, tenant, digest)

    def configure(self, key: SecretStr | None) -> None:
        """Let the settings' key act for the tenant `default`, and none that was added before."""
        self._configured = {}
        if key is not None:
            self.add(key.get_secret_value(), OPEN_TENANT)

    def load(self, snapshot: Snapshot) -> None:
        """Look keys up in `snapshot` from now on."""
        self._awaits_store = False
        self._snapshot = snapshot

    @property
    def version(self) -> int | None:
        """Of the snapshot that keys are looked up in, None while there is none."""
        return None if self._awaits_store else self._snapshot.version

    def find(self, secret: bytes | None) -> tuple[Tenant, str | None] | None:
        """Tenant and key id of `secret`, or None: not ours, revoked or expired. The tenant may be suspended.

        Raises `OverloadedError` for a key that can't be judged, as the store has not been reached yet.
        """
        digest = digest_of(secret or b"")
        key = self._configured.get(digest) or self._snapshot.keys.get(digest) or self._nobody
        is_ours = hmac.compare_digest(digest, key.digest)
        if self._open is not None:
            return self._current(self._open), None
        if is_ours and (key.expires_unix_s is None or self._clock.unix_s() < key.expires_unix_s):
            return self._current(key.tenant), key.id
        if secret and self._awaits_store:
            raise OverloadedError("the store of keys can't be reached yet; try again in a moment")
        return None

    def tenant(self, name: str) -> Tenant | None:
        """The tenant of `name` as it is now, for what outlives a request; None where there is none."""
        known = self._snapshot.tenants.get(name)
        if known is not None:
            return known
        given = [key.tenant for key in self._configured.values()]
        if self._open is not None:
            given.append(self._open)
        return next((tenant for tenant in given if tenant.name == name), None)

    @property
    def num_keys(self) -> int:
        """How many keys of the store are not revoked; expired ones are among them."""
        return len(self._snapshot.keys)

    def tenants(self) -> Mapping[str, Tenant]:
        """The tenants of the store, by name, as they are now."""
        return self._snapshot.tenants

    def _current(self, tenant: Tenant) -> Tenant:
        return self._snapshot.tenants.get(tenant.name, tenant)
