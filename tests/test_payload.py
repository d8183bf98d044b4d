"""Files of payloads: what is written is read, and what is closed is gone, without the event loop waiting for it."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from server.payload import CLOSED_AT_ONCE_BYTES, Payload, PayloadFile

LARGE = CLOSED_AT_ONCE_BYTES + 1


def file_of(num_bytes: int) -> PayloadFile:
    file = PayloadFile()
    file.append(bytes(num_bytes))
    return file


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.fixture
def closers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads that closed descriptors."""
    found, close = [], os.close

    def noted(descriptor: int) -> None:
        found.append(threading.current_thread())
        close(descriptor)

    monkeypatch.setattr("server.payload.os.close", noted)
    return found


def test_parts_are_read_as_they_were_written() -> None:
    file = PayloadFile()
    file.append(b"one")
    file.append(bytearray(b"two"))
    assert 6 == file.num_bytes
    assert b"neT" == Payload(file, 1, 3).read().replace(b"t", b"T")
    file.close()


async def test_much_is_given_back_beside_the_loop(closers: list[threading.Thread]) -> None:
    executor = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(executor)
    file = file_of(LARGE)
    descriptor = file.fileno()
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.fileno()
    await asyncio.get_running_loop().run_in_executor(None, str)  # behind it in the same thread
    assert not is_open(descriptor)
    assert [False] == [thread is threading.current_thread() for thread in closers]


@pytest.mark.parametrize("num_bytes", [0, CLOSED_AT_ONCE_BYTES])
async def test_little_is_given_back_at_once(num_bytes: int, closers: list[threading.Thread]) -> None:
    file = file_of(num_bytes)
    file.close()
    assert [threading.current_thread()] == closers


def test_without_a_loop_much_is_given_back_at_once(closers: list[threading.Thread]) -> None:
    file_of(LARGE).close()
    assert [threading.current_thread()] == closers


def test_what_is_forgotten_is_closed_and_a_twin_stays() -> None:
    file = file_of(3)
    twin, descriptor = file.duplicate(), file.fileno()
    del file
    assert not is_open(descriptor)
    assert bytes(3) == Payload(twin, 0, 3).read()
    twin.close()
