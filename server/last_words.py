"""An answer that is not lost by the end of its connection.

Role: between uvicorn and `http_protocol.py`. A server that closes a connection while its client still sends makes the system
reset it, and what the client has not read by then is gone: it would learn that something broke, and not what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class AnswerTransport:
    """What uvicorn writes an answer to: the transport, but for its end, which is left to `end`."""

    __slots__ = ("_transport", "close", "write")

    def __init__(self, transport: asyncio.Transport, end: Callable[[], None]) -> None:
        self._transport = transport
        self.write = transport.write
        self.close = end

    def is_closing(self) -> bool:
        """Whether nothing can be written any more."""
        return self._transport.is_closing()
