"""Request headers that only a gateway may set: the tenant, its place in the queue, the cache, the engine's replica.

Role: behind authentication, so that a client without a key learns nothing but that. Nothing here reads any of them; they are
refused because a client that sends one expects it to work, and because whatever is put behind this gateway one day may.
`x-session-id`, which vLLM and others route by, is not among them: it names nobody else, and many clients send one.
Source: what vLLM's server reads (`X-data-parallel-rank`, `X-Vllm-Priority`), NVIDIA Dynamo's and llm-d's routing headers, and
those of the Gateway API inference extension.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import InvalidRequestError
from server.quoting import cut

RESERVED: Final = frozenset({
    b"x-tenant", b"x-tenant-id", b"x-cache-salt", b"x-cache-group", b"x-priority", b"x-vllm-priority",
    b"x-data-parallel-rank", b"x-dp-rank", b"x-prefill-dp-rank", b"x-worker-instance-id", b"x-prefill-instance-id",
    b"x-prefiller-host-port", b"x-prefiller-url", b"x-kv-transfer-params",
    b"x-gateway-inference-fairness-id", b"x-gateway-inference-objective", b"x-gateway-model-name-rewrite",
})  # fmt: skip
RESERVED_PREFIXES: Final = (b"x-k3gw-", b"x-llm-d-", b"x-dynamo-")


class ReservedHeadersMiddleware:
    """Refuses requests with a reserved header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            for name, _ in scope["headers"]:
                if name in RESERVED or name.startswith(RESERVED_PREFIXES):
                    shown = cut(name.decode("latin-1"))
                    raise InvalidRequestError(f"the header `{shown}` is not accepted: the gateway decides that; remove it")
        return self._app(scope, receive, send)
