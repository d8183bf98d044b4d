"""Tenants take turns, equal things are made once, and what nobody waits for is not made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from server.grammar.turns import Turns


class Workshop:
    """Turns whose thread stands still at the first thing until `opened`."""

    def __init__(self) -> None:
        self.turns: Turns[str] = Turns()
        self.made: list[str] = []
        self.opened = threading.Event()
        self.has_begun = threading.Event()
        self.tasks: list[asyncio.Task[str]] = []

    def ask(self, tenant: str, name: str, key: str | None = None) -> asyncio.Task[str]:
        task = asyncio.ensure_future(self.turns.run(tenant, key, self._making(name)))
        self.tasks.append(task)
        return task

    async def block(self) -> None:
        """Keep the thread busy, so that what is asked for from now on waits."""
        self.ask("blocker", "block")
        await asyncio.to_thread(self.has_begun.wait)

    async def finish(self) -> list[str]:
        """What was made while the thread was blocked, in order."""
        await asyncio.sleep(0)  # all tasks have asked
        self.opened.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        return self.made[1:]

    def _making(self, name: str) -> Callable[[], str]:
        def make() -> str:
            self.has_begun.set()
            self.opened.wait()
            self.made.append(name)
            if name.startswith("bad"):
                raise ValueError(name)
            return name

        return make


async def test_tenants_take_turns() -> None:
    shop = Workshop()
    await shop.block()
    for tenant, num in (("a", 4), ("b", 2), ("c", 1)):
        for number in range(num):
            shop.ask(tenant, f"{tenant}{number}")

    assert ["a0", "b0", "c0", "a1", "b1", "a2", "a3"] == await shop.finish()


async def test_one_that_comes_again_waits_for_the_others() -> None:
    shop = Workshop()
    await shop.block()
    shop.ask("blocker", "again")
    shop.ask("a", "a0")

    assert ["again", "a0"] == await shop.finish()


async def test_what_is_equal_is_made_once_at_the_first_turn_of_any_who_wait() -> None:
    shop = Workshop()
    await shop.block()
    for number in range(3):
        shop.ask("a", f"a{number}")
    first = shop.ask("a", "shared", key="k")
    second = shop.ask("b", "shared again", key="k")

    assert ["a0", "shared", "a1", "a2"] == await shop.finish()
    assert await first == await second == "shared"


async def test_what_nobody_waits_for_is_not_made() -> None:
    shop = Workshop()
    await shop.block()
    gone = shop.ask("a", "gone", key="k")
    one = shop.ask("a", "kept", key="l")
    other = shop.ask("b", "kept", key="l")
    await asyncio.sleep(0)
    gone.cancel()
    one.cancel()

    assert ["kept"] == await shop.finish()
    assert await other == "kept"
    assert gone.cancelled()
    assert one.cancelled()


async def test_one_who_leaves_does_not_end_what_another_waits_for() -> None:
    shop = Workshop()
    first = shop.ask("a", "begun", key="k")
    second = shop.ask("a", "begun", key="k")
    await asyncio.to_thread(shop.has_begun.wait)
    first.cancel()
    await asyncio.sleep(0)

    await shop.finish()
    assert await second == "begun"


async def test_an_error_reaches_all_who_wait_and_ends_nothing_else() -> None:
    shop = Workshop()
    await shop.block()
    tasks = [shop.ask("a", "bad", key="k"), shop.ask("b", "bad", key="k")]
    left = shop.ask("c", "bad, and nobody looks")
    after = shop.ask("a", "good")
    await shop.finish()

    for task in tasks:
        with pytest.raises(ValueError, match="bad"):
            await task
    assert isinstance(left.exception(), ValueError)
    assert await after == "good"
    assert await shop.turns.run("a", "k", lambda: "made anew") == "made anew"
