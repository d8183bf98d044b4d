"""Questions between workers, over their Unix sockets."""

from __future__ import annotations

import asyncio
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from server.errors import OverloadedError
from server.workers import peers as peers_module
from server.workers.peers import Peers
from server.workers.supervisor import _socket_folder


async def name(index: int, argument: bytes) -> AsyncIterator[bytes]:
    yield str(index).encode()
    yield b""
    yield argument


async def large(argument: bytes) -> AsyncIterator[bytes]:
    for _ in range(8):
        yield argument * 100_000


async def broken(_: bytes) -> AsyncIterator[bytes]:
    yield b"so far"
    raise ValueError("a fault")


async def stuck(_: bytes) -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b"never"


@asynccontextmanager
async def running(count: int) -> AsyncIterator[list[Peers]]:
    with tempfile.TemporaryDirectory(prefix="k3gw-test-") as folder:
        all_peers = [
            Peers(
                Path(folder),
                index,
                count,
                {"name": lambda argument, index=index: name(index, argument), "large": large, "broken": broken, "stuck": stuck},
            )
            for index in range(count)
        ]
        tasks = [asyncio.ensure_future(peer.run()) for peer in all_peers]
        while not all((Path(folder) / f"{index}.sock").exists() for index in range(count)):
            await asyncio.sleep(0)
        try:
            yield all_peers
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_all_answer_in_their_order_whoever_asks() -> None:
    async with running(3) as workers:
        answers = [await worker.ask_all("name", b"x") for worker in workers]

    assert [[b"0", b"x"], [b"1", b"x"], [b"2", b"x"]] == [[part for part in parts if part] for parts in answers[1]]
    assert all([b"0", b"1", b"2"] == [parts[0] for parts in answer] for answer in answers)


async def test_large_answers_come_whole() -> None:
    async with running(2) as workers:
        parts = await workers[0].ask(1, "large", b"0123456789")

    assert [b"0123456789" * 100_000] * 8 == parts


@pytest.mark.parametrize("question", ["broken", "unheard of"])
async def test_an_answer_that_breaks_off_is_none(question: str) -> None:
    async with running(2) as workers:
        with pytest.raises(OverloadedError, match="worker 1 of this replica does not answer"):
            await workers[0].ask(1, question)
        assert [b"1", b"y"] == [part for part in await workers[0].ask(1, "name", b"y") if part], "it goes on"


async def test_one_that_stands_still_holds_nobody_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "DEADLINE_S", 0.05)
    async with running(2) as workers:
        with pytest.raises(OverloadedError):
            await workers[0].ask(1, "stuck")


async def test_one_that_is_not_there_is_told_so() -> None:
    with tempfile.TemporaryDirectory(prefix="k3gw-test-") as folder, pytest.raises(OverloadedError):
        await Peers(Path(folder), 0, 2, {}).ask(1, "name")


def test_nobody_else_gets_at_the_sockets() -> None:
    folder = _socket_folder()
    try:
        assert 0o700 == stat.S_IMODE(folder.stat().st_mode)
    finally:
        folder.rmdir()
