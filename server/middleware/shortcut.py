"""The route that nearly all requests want, without the router.

Role: the innermost layer; what it does not know goes on to the router, which has that route as well. A router compares a request
with each of its routes in turn, and stays there, with the layers around it, until the answer has ended.
"""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send


class ShortcutMiddleware:
    """Calls `endpoint` for `method` on `path`."""

    def __init__(self, app: ASGIApp, *, method: str, path: str, endpoint: ASGIApp) -> None:
        self._app = app
        self._method = method
        self._path = path
        self._endpoint = endpoint

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and scope["path"] == self._path and scope["method"] == self._method:
            return self._endpoint(scope, receive, send)
        return self._app(scope, receive, send)
