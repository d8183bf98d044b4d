"""Who asks: every path needs a key but the few listed here.

Role: step 1 of a request; default-deny. Invariant: what is not public or authenticated never reaches a route, known path or not.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import AuthenticationError
from server.settings import is_loopback
from server.tenancy.keys import KeyTable

PUBLIC_PATHS = frozenset({"/health", "/ready"})
FORWARDING_HEADERS = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip"})
MAX_KEY_BYTES = 512


class AuthenticationMiddleware:
    """Puts `tenant` and `key_id` into the request's state. `metrics_from_loopback`: `/metrics` needs no key from this machine."""

    def __init__(self, app: ASGIApp, *, keys: KeyTable, metrics_from_loopback: bool) -> None:
        self._app = app
        self._keys = keys
        self._metrics_from_loopback = metrics_from_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_public(scope):
            identity = self._keys.find(_key(scope))
            if identity is None:
                raise AuthenticationError("no valid API key; send one of yours as `Authorization: Bearer …` or `x-api-key`")
            scope["state"]["tenant"], scope["state"]["key_id"] = identity
            scope["state"]["log"].update(tenant=identity[0].name, key_id=identity[1])
        await self._app(scope, receive, send)

    def _is_public(self, scope: Scope) -> bool:
        path = scope["path"]
        if path == "/metrics" and self._metrics_from_loopback:
            return _is_from_here(scope)
        return path in PUBLIC_PATHS


def _is_from_here(scope: Scope) -> bool:
    """Whether a request comes from this machine, and not from elsewhere through a proxy on it."""
    client = scope.get("client")
    if client is None or not is_loopback(client[0]):
        return False
    return not any(name in FORWARDING_HEADERS for name, _ in scope["headers"])


def _key(scope: Scope) -> bytes | None:
    """The key a request came with, None for none, more than one, or one that can't be ours."""
    found: bytes | None = None
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, secret = value.partition(b" ")
            key = secret.strip() if scheme.lower() == b"bearer" else b""
        elif name == b"x-api-key":
            key = value.strip()
        else:
            continue
        if key and found is not None and key != found:
            return None
        found = key or found
    return found if found is not None and len(found) <= MAX_KEY_BYTES else None
