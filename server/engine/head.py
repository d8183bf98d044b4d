"""Noticing that the first machine of an engine is gone, on the others.

Role: beside `vllm_node.py`. vLLM's workers on other machines wait for the first one's next step, for ever if need be: of a head
that was killed they learn nothing. So one connection is held open to the port where the engine's processes met, and its end is
theirs.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

CONNECT_INTERVAL_S = 1.0
SILENCE_S = 30
"""After this long a machine that answers no probe counts as gone: one that lost its power or network ends no connection."""


def watch(address: tuple[str, int], on_gone: Callable[[], None]) -> threading.Thread:
    """Call `on_gone` once, from a thread, when what listens at `address` has been reached and then goes away."""
    thread = threading.Thread(target=_watch, args=(address, on_gone), name="head-watch", daemon=True)
    thread.start()
    return thread


def _watch(address: tuple[str, int], on_gone: Callable[[], None]) -> None:
    again = threading.Event()
    while True:
        try:
            connection = socket.create_connection(address, timeout=SILENCE_S)
        except OSError:
            again.wait(CONNECT_INTERVAL_S)  # the first machine may be started last
            continue
        with connection:
            _probe(connection)
            try:
                while connection.recv(4096):
                    """Nothing is said on it."""
            except OSError:
                pass
        on_gone()
        return


def _probe(connection: socket.socket) -> None:
    """Have the system ask whether the other side is there, as long as nothing is said."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", SILENCE_S // 3), ("TCP_KEEPINTVL", SILENCE_S // 6), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
