"""What every engine promises of `take`: each token goes one way or the other, once and in order, whatever the way is like."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from itertools import chain
from typing import Any

import pytest

from server.engine.base import EngineDelta
from server.errors import InsufficientQuotaError

pytestmark = pytest.mark.asyncio(loop_scope="session")

Client = Any  # of conftest
ENDLESS = {"max_tokens": 400, "ignore_eos": True}
NUM_TOKENS = 48
LONG_ENOUGH = {"max_tokens": NUM_TOKENS, "ignore_eos": True}


class Way:
    """Takes what `is_open` lets through. `said`: all tokens in the order in which they came; `num_taken` of them were taken."""

    def __init__(self, is_open: Callable[[], bool] = lambda: True) -> None:
        self._is_open = is_open
        self.said: list[int] = []
        self.num_taken = 0
        self.num_offered = 0

    def take(self, token_ids: Sequence[int]) -> bool:
        assert len(token_ids) > 0
        self.num_offered += 1
        if not self._is_open():
            return False
        self.said += token_ids
        self.num_taken += len(token_ids)
        return True

    async def read(self, deltas: AsyncIterator[EngineDelta], rest: Callable[[], int] = lambda: 0) -> list[EngineDelta]:
        """All that comes the usual way; `rest()`: turns of the loop that the reader lets pass after each."""
        found = []
        async for delta in deltas:
            self.said += delta.token_ids
            found.append(delta)
            for _ in range(rest()):
                await asyncio.sleep(0)
        return found


async def plain(client: Client) -> list[int]:
    return list(chain.from_iterable(delta.token_ids for delta in await client.ask(sampling=LONG_ENOUGH)))


async def test_what_is_taken_is_not_yielded(client: Client) -> None:
    expected, way = await plain(client), Way()
    deltas = await way.read(client.generate(take=way.take, sampling=LONG_ENOUGH))
    assert expected == way.said
    assert (None, "length") == (deltas[0].finish_reason, deltas[-1].finish_reason)
    assert way.num_taken > NUM_TOKENS // 2
    assert NUM_TOKENS - way.num_taken == sum(len(delta.token_ids) for delta in deltas)


@pytest.mark.parametrize("seed", range(6))
async def test_tokens_keep_their_order_whichever_way_they_go(client: Client, seed: int) -> None:
    chance = random.Random(seed)
    way = Way(lambda: chance.random() < chance.choice((0.1, 0.5, 0.9)))
    expected = await plain(client)
    await way.read(client.generate(take=way.take, sampling=LONG_ENOUGH), lambda: chance.choice((0, 0, 1, 3, 40)))
    assert expected == way.said
    assert way.num_offered > 0


async def test_a_way_that_is_closed_changes_nothing(client: Client) -> None:
    expected, way = await client.ask(sampling=LONG_ENOUGH), Way(lambda: False)
    deltas = await way.read(client.generate(take=way.take, sampling=LONG_ENOUGH))
    assert [delta.token_ids for delta in expected] == [delta.token_ids for delta in deltas]


@pytest.mark.parametrize(
    "error", [InsufficientQuotaError("no money left"), ZeroDivisionError("a fault of ours")], ids=["ours", "fault"]
)
async def test_what_take_raises_ends_its_own_request_only(client: Client, error: Exception) -> None:
    def fail(_: Sequence[int]) -> bool:
        raise error

    way = Way()
    kept = asyncio.ensure_future(way.read(client.generate(take=way.take, sampling=LONG_ENOUGH)))
    with pytest.raises(type(error), match=str(error)):
        await Way().read(client.generate(take=fail, sampling=ENDLESS))
    await kept
    assert NUM_TOKENS == len(way.said)  # a real model's words depend on its neighbours
    assert (0, False) == (client.engine.num_unfinished, client.engine.dead)


async def test_what_take_raises_is_held_by_nobody_afterwards(client: Client) -> None:
    """Its frames are those of the whole request, of which the collector would hear late."""

    raised: list[weakref.ref[Exception]] = []

    class Fault(Exception):
        def __init__(self) -> None:
            raised.append(weakref.ref(self))

    def fail(_: Sequence[int]) -> bool:
        raise Fault

    gc.collect()
    gc.disable()
    try:
        with suppress(Fault):
            await Way().read(client.generate(take=fail, sampling=ENDLESS))
        assert [None] == [error() for error in raised]
    finally:
        gc.enable()


async def test_an_abort_ends_what_is_being_taken(client: Client) -> None:
    way = Way()
    reading = asyncio.ensure_future(way.read(client.generate(take=way.take, request_id="to-abort", sampling=ENDLESS)))
    while way.num_taken < 3:
        await asyncio.sleep(0)
    await client.engine.abort("to-abort")
    deltas = await reading
    assert "abort" == deltas[-1].finish_reason
    assert 3 <= len(way.said) < ENDLESS["max_tokens"]
    assert 0 == client.engine.num_unfinished


@pytest.mark.parametrize("ending", ["cancelled", "closed"])
async def test_nothing_is_offered_once_the_reader_has_left(client: Client, ending: str) -> None:
    is_open = iter([True, False] * ENDLESS["max_tokens"])
    way = Way(lambda: next(is_open))
    enough = asyncio.Event()

    async def read() -> None:
        async with aclosing(client.generate(take=way.take, sampling=ENDLESS)) as deltas:
            async for _ in deltas:
                if way.num_taken > 2:
                    enough.set()
                    if ending == "closed":
                        return

    task = asyncio.ensure_future(read())
    await enough.wait()
    task.cancel()
    await asyncio.wait([task])
    num_offered = way.num_offered
    await client.ask(sampling={"max_tokens": 4, "ignore_eos": True})  # the engine goes on
    assert num_offered == way.num_offered
    assert 0 == client.engine.num_unfinished
