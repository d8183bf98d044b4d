"""Bodies larger than the limit are refused, before they are read where their length is announced.

Role: at the edge, behind authentication. A body counts as held until its request has ended, whatever became of its bytes: the
outermost layer, which is there until then, calls `CountedBody.close`.
"""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import BodyTooLargeError, InvalidRequestError
from server.held import HeldBytes


class BodyLimitMiddleware:
    """Refuses bodies of more than `max_body_bytes`, and those for which `held` has no room.

    What counts a request's body is in its state, as `body`.
    """

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, held: HeldBytes) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._held = held

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        for name, value in scope["headers"]:
            if name == b"content-length":
                if not value.isdigit():
                    raise InvalidRequestError("the `content-length` header is not a number")
                if int(value) > self._max_body_bytes:
                    raise _too_large(self._max_body_bytes)
            elif name == b"content-encoding" and value.lower() != b"identity":
                raise InvalidRequestError("the body has a `content-encoding`; send it plain, compressed bodies are not unpacked")
        state = scope["state"]
        tenant = state["tenant"].name if "tenant" in state else ""
        state["body"] = body = CountedBody(receive, self._max_body_bytes, self._held, tenant)
        return self._app(scope, body.receive, send)


class CountedBody:
    """One request's, as it arrives."""

    __slots__ = ("_held", "_max_bytes", "_num_bytes", "_receive", "_tenant")

    def __init__(self, receive: Receive, max_bytes: int, held: HeldBytes, tenant: str) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._held = held
        self._tenant = tenant
        self._num_bytes = 0

    async def receive(self) -> Message:
        """ASGI's. Raises what refuses a body."""
        message = await self._receive()
        if message["type"] == "http.request":
            num_new = len(message.get("body", b""))
            self._num_bytes += num_new
            self._held.take(self._tenant, num_new)
            if self._num_bytes > self._max_bytes:
                raise _too_large(self._max_bytes)
        return message

    def close(self) -> None:
        """The request has ended."""
        self._held.give(self._tenant, self._num_bytes)
        self._num_bytes = 0


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body has more than {max_bytes} bytes; send less, or ask for a higher limit")
