"""Bodies larger than the limit are refused, before they are read where their length is announced.

Role: at the edge, behind authentication. A body counts as held until its request has ended, whatever became of its bytes.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import BodyTooLargeError, InvalidRequestError
from server.held import HeldBytes


class BodyLimitMiddleware:
    """Refuses bodies of more than `max_body_bytes`, and those for which `held` has no room."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, held: HeldBytes) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        for name, value in scope["headers"]:
            if name == b"content-length":
                if not value.isdigit():
                    raise InvalidRequestError("the `content-length` header is not a number")
                if int(value) > self._max_body_bytes:
                    raise self._error()
            elif name == b"content-encoding" and value.lower() != b"identity":
                raise InvalidRequestError("the body has a `content-encoding`; send it plain, compressed bodies are not unpacked")
        num_bytes = 0
        tenant = scope["state"]["tenant"].name if "tenant" in scope["state"] else ""

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            if message["type"] == "http.request":
                num_new = len(message.get("body", b""))
                num_bytes += num_new
                self._held.take(tenant, num_new)
                if num_bytes > self._max_body_bytes:
                    raise self._error()
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._held.give(tenant, num_bytes)

    def _error(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"the body has more than {self._max_body_bytes} bytes; send less, or ask for a higher limit")
