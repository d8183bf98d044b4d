"""The listening sockets of several workers: each has its own, all of one address, and the kernel spreads connections on them."""

from __future__ import annotations

import socket

from server.serving import BACKLOG, bind


def bind_all(host: str, port: int, count: int) -> list[socket.socket]:
    """So many sockets that listen. Raises `OSError` as `bind` does: a port that is anybody's else is not shared with them."""
    with bind(host, port) as first:
        family, address = first.family, first.getsockname()[:2]
    return [socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=True) for _ in range(count)]
