"""What all servers under measurement are asked with: one model, one key, one template; and how one says that it serves."""

from __future__ import annotations

import socket
from typing import Any, Final

import uvicorn

KEY: Final = "k3gw-bench-key-0123456789"
MODEL: Final = "kimi-k3"
MAX_MODEL_LEN: Final = 8192
MAX_STREAMS: Final = 8192
TEMPLATE: Final = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "
    "<|open|>{% if thinking is defined and not thinking %}response{% else %}think{% endif %}<|sep|>"
)
"""For vLLM's servers, which need one; the gateway renders K3's own, longer prompt."""


async def serve(config: uvicorn.Config) -> None:
    """Serve on a free port, and print `ready PORT` once requests are taken; until told to stop."""
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    start = server.startup

    async def started(sockets: Any = None) -> None:
        await start(sockets)
        if (gateway := getattr(config.app.state, "gateway", None)) is not None:  # type: ignore[union-attr]  # an application
            await gateway.opened.wait()
        print(f"ready {listener.getsockname()[1]}", flush=True)

    server.startup = started  # type: ignore[method-assign]
    await server.serve(sockets=[listener])
