"""An event: who waits, who is woken, and what is left of who gave up."""

from __future__ import annotations

import asyncio

import pytest

from server.flag import Flag


@pytest.mark.parametrize("make", [asyncio.Event, Flag])
async def test_all_who_wait_are_woken_once_it_is_set(make: type[asyncio.Event | Flag]) -> None:
    flag, woken = make(), list[int]()

    async def wait(number: int) -> None:
        assert await flag.wait() is True
        woken.append(number)

    tasks = [asyncio.ensure_future(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert woken == []
    tasks[1].cancel()
    await asyncio.sleep(0)
    flag.set()
    flag.clear()  # they were woken all the same
    flag.set()
    await asyncio.wait(tasks)
    assert woken == [0, 2]
    assert flag.is_set()
    assert await flag.wait() is True

    flag.clear()
    late = asyncio.ensure_future(wait(4))
    await asyncio.sleep(0)
    assert (False, [0, 2]) == (flag.is_set(), woken)
    flag.set()
    await late
    assert woken == [0, 2, 4]


async def test_it_can_be_set_from_the_start() -> None:
    assert Flag(is_set=True).is_set()
    assert not Flag().is_set()
