"""Who asks: every path needs a key but the few listed here.

Role: step 1 of a request; default-deny. Invariants: what is not public or authenticated never reaches a route, known path or not;
a tenant's key never opens what shows or changes other tenants; an operator's key acts for no tenant. Only `/dashboard`, which
browsers open, takes a key as a password (HTTP's Basic scheme): a page of another site can have it sent, and there change nothing.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from server.clock import SystemClock
from server.errors import AuthenticationError, GatewayError, OverloadedError, TenantSuspendedError
from server.middleware.wrong_keys import WrongKeys
from server.settings import is_loopback
from server.tenancy.keys import KeyTable
from server.tenancy.operators import OperatorKeys

PUBLIC_PATHS = frozenset({"/health", "/ready"})
FORWARDING_HEADERS = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip"})
MAX_KEY_BYTES = 512
BASIC_CHALLENGE: Final = 'Basic realm="k3-gateway", charset="UTF-8"'
_HOW: Final = "send it as `Authorization: Bearer …` or `x-api-key`"


class AuthenticationMiddleware:
    """Puts `tenant` and `key_id` into the request's state, `is_admin` where an operator asks, `is_nobody` where it refuses.

    `metrics_from_loopback`: `/metrics` and `/dashboard` need no key from this machine, under a name of it. `wrong_keys`: brakes
    who keeps sending some.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyTable,
        metrics_from_loopback: bool,
        operators: OperatorKeys | None = None,
        wrong_keys: WrongKeys | None = None,
    ) -> None:
        self._app = app
        self._keys = keys
        self._operators = operators or OperatorKeys()
        self._metrics_from_loopback = metrics_from_loopback
        self._wrong_keys = wrong_keys or WrongKeys(SystemClock())

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and not self._is_public(scope) and (error := self._identify(scope)) is not None:
            return self._refuse(scope, error)
        return self._app(scope, receive, send)

    async def _refuse(self, scope: Scope, error: GatewayError) -> None:
        client = scope.get("client")
        scope["state"]["is_nobody"] = True
        if not await self._wrong_keys.pause(client[0] if client else ""):
            scope["state"].setdefault("headers", {})["connection"] = "close"
        try:
            raise error
        finally:
            del error  # it has this frame

    def _is_public(self, scope: Scope) -> bool:
        path = scope["path"]
        if path == "/metrics" or _is_below(path, "/dashboard"):
            return self._metrics_from_loopback and _is_from_here(scope) and _is_named_so(scope)
        return path in PUBLIC_PATHS

    def _identify(self, scope: Scope) -> GatewayError | None:
        """Note who asks; the error where that can't be known. Raises `TenantSuspendedError` for a suspended tenant."""
        path, secret, state = scope["path"], _key(scope), scope["state"]
        if path == "/metrics":
            if self._operators.opens_metrics(secret):
                return None
            if not (self._operators.has_metrics or self._operators.has_admin):
                return AuthenticationError(
                    "no `metrics.key` and no admin key is set; nothing opens `/metrics` until there is one" + self._way_in(scope)
                )
            return AuthenticationError(f"`/metrics` takes `metrics.key` or the admin key; {_HOW}{self._way_in(scope)}")
        if _is_below(path, "/dashboard"):
            return self._identify_viewer(secret, scope)
        if _is_below(path, "/admin") or (_is_below(path, "/debug") and self._operators.is_admin(secret)):
            return self._identify_admin(secret, scope)
        try:
            identity = self._keys.find(secret)
        except OverloadedError as error:  # no key can be judged yet, and whoever floods us does so now, too
            return error
        if identity is None:
            return AuthenticationError("no valid API key; send one of yours as `Authorization: Bearer …` or `x-api-key`")
        tenant, key_id = identity
        state["tenant"], state["key_id"] = identity
        state["log"].update(tenant=tenant.name, key_id=key_id)
        if tenant.suspended:
            raise TenantSuspendedError(f"tenant `{tenant.name}` is suspended; ask who runs this gateway")
        return None

    def _identify_viewer(self, secret: bytes | None, scope: Scope) -> AuthenticationError | None:
        """As `_identify_admin`; a browser sends the key as a password, and is asked to."""
        given = {key for key in (secret, _password(scope)) if key is not None}
        if len(given) == 1 and self._operators.is_admin(*given):
            self._note_admin(scope)
            return None
        if not self._operators.has_admin:
            return AuthenticationError(
                "no admin key is set (`tenancy.admin_key`); nothing opens `/dashboard` from elsewhere until there is one"
                + self._way_in(scope)
            )
        scope["state"].setdefault("headers", {})["www-authenticate"] = BASIC_CHALLENGE
        return AuthenticationError(
            f"`/dashboard` takes the admin key, as the password of any user; a script can {_HOW}{self._way_in(scope)}"
        )

    def _way_in(self, scope: Scope) -> str:
        """What else opens a path for who asks from this machine, under another name than its own."""
        if not (self._metrics_from_loopback and _is_from_here(scope)):
            return ""
        return "; from this machine it needs none under `localhost` or `127.0.0.1`"

    def _identify_admin(self, secret: bytes | None, scope: Scope) -> AuthenticationError | None:
        if self._operators.is_admin(secret):
            self._note_admin(scope)
            return None
        if not self._operators.has_admin:
            return AuthenticationError("no admin key is set (`tenancy.admin_key`); nothing opens `/admin` until there is one")
        return AuthenticationError(f"`/admin` takes the admin key only; {_HOW}")

    def _note_admin(self, scope: Scope) -> None:
        scope["state"]["is_admin"] = True
        scope["state"]["log"].update(key_id="admin")


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder) and path[len(folder) : len(folder) + 1] in ("", "/")


def _is_from_here(scope: Scope) -> bool:
    """Whether a request comes from this machine, and not from elsewhere through a proxy on it."""
    client = scope.get("client")
    if client is None or not is_loopback(client[0]):
        return False
    return not any(name in FORWARDING_HEADERS for name, _ in scope["headers"])


def _is_named_so(scope: Scope) -> bool:
    """Whether a request from this machine was meant for it, by name.

    A page of another site may give its own name this machine's address: the browser would then show it what is here, tenants and
    figures alike.
    """
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    try:
        return len(hosts) == 1 and is_loopback(urlsplit(f"//{hosts[0]}").hostname or "")
    except ValueError:
        return False


def _password(scope: Scope) -> bytes | None:
    """The password that a browser sends (RFC 7617), None for none, more than one, or one that can't be a key of ours."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1 or len(values[0]) > 2 * MAX_KEY_BYTES:
        return None
    scheme, _, encoded = values[0].partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        _, _, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except binascii.Error:
        return None
    return password if 0 < len(password) <= MAX_KEY_BYTES else None


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
