"""The measurement of fairness finds what it is for, and is the same on every run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from bench.fair_shares import Load, jain, shares
from bench.fairness import CHAT, Queue, light
from bench.virtual_time import run
from server.context import Tenant


class FirstComeFirstServed(Queue):
    """The same, and blind to who asks."""

    async def ask(self, tenant: Tenant, num_input_tokens: int, num_output_tokens: int) -> float:
        return await super().ask(Tenant("all", weight=1), num_input_tokens, num_output_tokens)

    def take_service(self) -> Mapping[str, float]:
        service = super().take_service().get("all", 0.0)
        return {"one": service / 2, "other": service / 2}


def sides(weight: float) -> list[tuple[Tenant, object]]:
    return [(Tenant("one"), CHAT), (Tenant("other", weight=weight), CHAT)]


def found(target: type[Queue], weight: float) -> list[tuple[str, bool, str]]:
    async def measured() -> list[tuple[str, bool, str]]:
        lines = await shares(Load(target(32), 1), 60.0, sides(weight), "some")  # type: ignore[arg-type]
        return [(line.what, line.is_met, line.found) for line in lines]

    return run(measured())


def test_the_queue_meets_what_is_demanded() -> None:
    once = found(Queue, 3)
    assert [True, True, True] == [is_met for _, is_met, _ in once]
    assert once == found(Queue, 3)


def test_a_queue_that_is_not_fair_is_found_out() -> None:
    assert [False, False, True] == [is_met for _, is_met, _ in found(FirstComeFirstServed, 3)]


def test_a_flood_is_found_out() -> None:
    async def measured(target: type[Queue]) -> list[bool]:
        return [line.is_met for line in await light(Load(target(32), 1), 20.0, "some")]

    assert [True, True] == run(measured(Queue))
    assert not run(measured(FirstComeFirstServed))[0]


def test_jains_index() -> None:
    assert (1.0, 0.25) == (jain([3, 3, 3]), jain([1, 0, 0, 0]))


def test_made_up_time_takes_no_time_and_keeps_its_order() -> None:
    async def sleepers() -> list[tuple[str, float]]:
        woken = []

        async def sleep(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append((name, round(asyncio.get_running_loop().time(), 6)))

        await asyncio.gather(sleep("late", 5000.0), sleep("early", 0.5))
        return woken

    assert [("early", 0.5), ("late", 5000.0)] == run(sleepers())
