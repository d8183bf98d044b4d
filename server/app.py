"""The application: routes inside, layers of middleware around them.

Role: composition, once per gateway. `create_app` twice gives two independent gateways.
"""

from __future__ import annotations

import http

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from server.clock import Clock, SystemClock
from server.dashboard.dashboard import Dashboard
from server.dashboard.files import load_files
from server.errors import MethodNotAllowedError, NotFoundError
from server.gateway import Gateway
from server.lifespan import OpenEngine, lifespan_of
from server.media.resolver import Resolve
from server.middleware.authentication import AuthenticationMiddleware
from server.middleware.body_limit import BodyLimitMiddleware
from server.middleware.edge import EdgeMiddleware
from server.middleware.errors import error_response
from server.middleware.reserved_headers import ReservedHeadersMiddleware
from server.middleware.shortcut import ShortcutMiddleware
from server.middleware.wrong_keys import WrongKeys
from server.routes import admin, admin_keys, chat, dashboard, debug, health, metrics, models
from server.settings import Settings


def create_app(
    settings: Settings, open_engine: OpenEngine, *, clock: Clock | None = None, resolve: Resolve | None = None
) -> FastAPI:
    """A gateway that serves once its store is reached and `open_engine` has returned; it answers `/health` and 503 until then.

    The running parts are in `app.state.gateway`. `resolve`: how the names of image hosts become addresses; left out, as the
    system does it. Raises `StoreError` for a URL that is no store's.
    """
    clock = clock or SystemClock()
    gateway = Gateway(settings, clock, resolve)
    wrong_keys = WrongKeys(clock)
    app = _Application(
        title="k3-gateway",
        lifespan=lifespan_of(gateway, open_engine),
        redirect_slashes=False,  # a redirect would name the scheme that a proxy before us speaks with us, and send the key there
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        middleware=[  # outermost first
            Middleware(EdgeMiddleware, clock=clock, on_refused=gateway.refused, tracer=gateway.tracer),
            Middleware(
                AuthenticationMiddleware,
                keys=gateway.storage.keys,
                metrics_from_loopback=settings.metrics.access == "loopback",
                operators=gateway.operators,
                wrong_keys=wrong_keys,
            ),
            *([] if gateway.ignores_reserved_fields else [Middleware(ReservedHeadersMiddleware)]),
            Middleware(BodyLimitMiddleware, max_body_bytes=settings.http.max_body_bytes, held=gateway.held),
            Middleware(ShortcutMiddleware, method="POST", path=chat.PATH, endpoint=chat.endpoint),
        ],
        exception_handlers={HTTPException: _routing_error},
    )
    app.state.gateway = gateway
    app.state.dashboard, app.state.dashboard_files = Dashboard(gateway), load_files()
    gateway.background.append(app.state.dashboard.run)
    for routes in (health, models, chat, metrics, admin, admin_keys, dashboard):
        app.include_router(routes.router)
    if settings.engine.kind == "scripted":
        app.include_router(debug.router)
    return app


class _Application(FastAPI):
    """Our own layers, and nothing around them, where each request passes and each open stream waits."""

    def build_middleware_stack(self) -> ASGIApp:
        stack = super().build_middleware_stack()
        assert isinstance(stack, ServerErrorMiddleware)
        return stack.app  # the edge renders every failure itself

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        scope["app"] = self
        await self.middleware_stack(scope, receive, send)


def _methods_of(request: Request) -> set[str]:
    """What the path takes. The router's own answer names the methods of the first route alone."""
    routes = (route for route in request.app.routes if isinstance(route, Route))
    return {method for route in routes if route.matches(request.scope)[0] is not Match.NONE for method in route.methods or ()}


async def _routing_error(request: Request, error: Exception) -> Response:
    """What the router refuses (no such path, no such method), in the API's shape."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == http.HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = ", ".join(sorted(_methods_of(request)))
        request.state.error = MethodNotAllowedError(f"`{path}` does not take `{request.method}`; it takes {allowed}")
        response = error_response(request.state.error)
        response.headers["allow"] = allowed
        return response
    if error.status_code == http.HTTPStatus.NOT_FOUND:
        raise NotFoundError(f"there is no `{path}`; the API is below `/v1`")
    raise error
