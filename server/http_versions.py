"""uvicorn's HTTP/1.1 protocol for clients that know less than that, or would like more.

Role: under `http_protocol.py`. Some clients (Java's own is one) offer with their first request to go on in HTTP/2; uvicorn's
parser would take the body of it for the other protocol. What is offered need not be taken: such a request is read again without
its offer. And HTTP/1.0 has no chunks: an answer whose length is not known ends there with the connection.
Source: RFC 9110, 7.8; RFC 9112, 6.1 and 6.3.
"""

from __future__ import annotations

import sys
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


class AnyHttpProtocol(HttpToolsProtocol):
    """One connection."""

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.is_offer:
                self._read_without_offer(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")

    @property
    def is_offer(self) -> bool:
        """Whether the request whose head has been read offers another protocol, and is to be read again."""
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            _send_no_chunks(self.cycle)

    def _read_without_offer(self, rest: bytes) -> None:
        """`rest`: what came behind the head."""
        first = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        others = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)  # the other one reads no more
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self.data_received(b"".join([first, *others, b"\r\n", rest]))


def _send_no_chunks(cycle: RequestResponseCycle) -> None:
    """Have `cycle` send an answer without a length as it is; uvicorn closes the connection behind it."""
    send = cycle.send

    async def send_plain(message: Any) -> None:
        if message["type"] == "http.response.start":
            if all(name.lower() != b"content-length" for name, _ in message.get("headers", ())):
                cycle.chunked_encoding = False
                cycle.expected_content_length = sys.maxsize
        elif cycle.expected_content_length > sys.maxsize // 2 and not message.get("more_body", False):
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_plain  # type: ignore[method-assign]
