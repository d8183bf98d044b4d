"""The other machines of an engine notice that the first one is gone: real sockets, no engine."""

from __future__ import annotations

import socket
import threading

import pytest

from server.engine import head
from server.engine.head import watch

WAIT_S = 20


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "CONNECT_INTERVAL_S", 0.01)


def test_the_end_of_the_head_is_told_once() -> None:
    gone = threading.Semaphore(0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = watch(listener.getsockname()[:2], gone.release)
        connection, _ = listener.accept()
        connection.sendall(b"what it says does not matter")
        assert not gone.acquire(timeout=0.05)  # it is there
        connection.close()
    assert gone.acquire(timeout=WAIT_S)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert not gone.acquire(blocking=False)


def test_a_head_that_was_killed_is_gone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, reached = threading.Event(), threading.Event()
    monkeypatch.setattr(head, "_probe", lambda connection: reached.set())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        watch(listener.getsockname()[:2], gone.set)
        connection, _ = listener.accept()
        assert reached.wait(WAIT_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # resets, as a process that is killed may
        connection.close()
    assert gone.wait(WAIT_S)


def test_a_head_that_starts_last_is_waited_for() -> None:
    gone = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        address = reserved.getsockname()[:2]
    watch(address, gone.set)
    assert not gone.wait(0.05)  # nobody is there yet, and nobody has gone
    with socket.create_server(address) as listener:
        listener.accept()[0].close()
        assert gone.wait(WAIT_S)


def test_a_machine_without_power_is_asked_for_by_the_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()[:2]) as connection:
        head._probe(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.gettimeout() is None
