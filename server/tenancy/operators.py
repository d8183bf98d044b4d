"""The keys that are no tenant's: the admin key, and the one that reads the metrics.

Invariant: neither is an API key, and no API key is one of these. Only digests are kept, and a comparison takes the same time
whatever it compares.
"""

from __future__ import annotations

import hashlib
import hmac

from pydantic import SecretStr

_NO_DIGEST = bytes(32)  # of nothing that anybody could send


class OperatorKeys:
    """Who runs the gateway. A key that is not set opens nothing."""

    def __init__(self, admin: SecretStr | None = None, metrics: SecretStr | None = None) -> None:
        self.load(admin, metrics)

    def load(self, admin: SecretStr | None, metrics: SecretStr | None) -> None:
        """Let these open from now on, and no others."""
        self.has_admin = admin is not None
        self.has_metrics = metrics is not None
        self._admin = _digest_of(admin)
        self._metrics = _digest_of(metrics)

    def is_admin(self, secret: bytes | None) -> bool:
        """Whether `secret` opens `/admin`."""
        return hmac.compare_digest(_digest(secret), self._admin)

    def opens_metrics(self, secret: bytes | None) -> bool:
        """Whether `secret` opens `/metrics`."""
        digest = _digest(secret)
        return hmac.compare_digest(digest, self._metrics) | hmac.compare_digest(digest, self._admin)


def _digest(secret: bytes | None) -> bytes:
    return hashlib.sha256(secret or b"").digest()


def _digest_of(key: SecretStr | None) -> bytes:
    return _NO_DIGEST if key is None else _digest(key.get_secret_value().encode())
