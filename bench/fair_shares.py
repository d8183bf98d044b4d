"""Tenants that keep asking, and how what they are given compares with their weights.

Role: the measure of `fairness.py` and `fairness_http.py`; knows nothing of what is asked but `Target`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from server.context import Tenant

MAX_SHARE_ERROR: Final = 0.05
MIN_JAIN_INDEX: Final = 0.98
MIN_BUSY: Final = 0.98
WARM_UP_S: Final = 60.0
_LOOK_S: Final = 0.037


@dataclass(frozen=True)
class Shape:
    """Requests of one kind: prompt and answer have as many tokens as these ranges say, both ends included."""

    num_input_tokens: tuple[int, int]
    num_output_tokens: tuple[int, int]


class Target(Protocol):
    """What is asked. `num_seats`: how many requests it runs at once."""

    num_seats: int

    async def ask(self, tenant: Tenant, num_input_tokens: int, num_output_tokens: int) -> float:
        """Have one request answered; seconds until its first token."""
        ...

    def take_service(self) -> Mapping[str, float]:
        """What each tenant was given since the last call, in uncached input tokens."""
        ...

    def busy(self) -> float | None:
        """Requests that run now, per seat that is open to all; None while nothing waits."""
        ...


@dataclass(frozen=True)
class Found:
    """One line of the table."""

    what: str
    demanded: str
    found: str
    is_met: bool


class Load:
    """Clients of `target`; `busy` collects how busy it was while anything waited."""

    def __init__(self, target: Target, seed: int) -> None:
        self.target = target
        self.random = random.Random(seed)
        self.busy: list[float] = []

    async def keep_asking(self, tenant: Tenant, shape: Shape) -> None:
        """One client that is never content."""
        while True:
            await self.ask(tenant, shape)

    async def ask(self, tenant: Tenant, shape: Shape) -> float:
        """One request of `shape`; seconds to its first token."""
        return await self.target.ask(
            tenant, self.random.randint(*shape.num_input_tokens), self.random.randint(*shape.num_output_tokens)
        )

    async def watch(self) -> None:
        """Look how busy the target is, again and again."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if (busy := self.target.busy()) is not None:
                self.busy.append(min(1.0, busy))

    async def beside(self, work: Coroutine[Any, Any, None], floods: Sequence[tuple[Tenant, Shape, int]]) -> None:
        """Do `work` while each tenant of `floods` keeps its number of requests open."""
        async with asyncio.TaskGroup() as group:
            clients = [
                group.create_task(self.keep_asking(tenant, shape))
                for tenant, shape, num_requests in floods
                for _ in range(num_requests)
            ]
            clients.append(group.create_task(self.watch()))
            try:
                await work
            finally:
                for client in clients:
                    client.cancel()


def jain(shares: Sequence[float]) -> float:
    """Jain's fairness index: 1 where all are equal, 1/n where one has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


async def shares(
    load: Load, seconds: float, sides: Sequence[tuple[Tenant, Shape]], name: str, *, warm_up_s: float = WARM_UP_S
) -> list[Found]:
    """Backlogged tenants, side by side."""
    service: dict[str, float] = {}

    async def measure() -> None:
        await asyncio.sleep(warm_up_s)
        load.target.take_service()
        load.busy.clear()
        await asyncio.sleep(seconds)
        service.update(load.target.take_service())

    await load.beside(measure(), [(tenant, shape, 2 * load.target.num_seats) for tenant, shape in sides])
    per_weight = [service[tenant.name] / tenant.weight for tenant, _ in sides]
    even = sum(service.values()) / sum(tenant.weight for tenant, _ in sides)
    error = max(abs(share / even - 1) for share in per_weight)
    index = jain(per_weight)
    return [
        Found(f"{name}: service off its weights", f"<= {MAX_SHARE_ERROR:.1%}", f"{error:.2%}", error <= MAX_SHARE_ERROR),
        Found(f"{name}: Jain index", f">= {MIN_JAIN_INDEX}", f"{index:.5f}", index >= MIN_JAIN_INDEX),
        busy_line(load, name),
    ]


def busy_line(load: Load, name: str) -> Found:
    """Of the seats that are open to all, how many ran while anything waited."""
    mean = sum(load.busy) / len(load.busy) if load.busy else 0.0
    return Found(f"{name}: busy while anything waits", f">= {MIN_BUSY:.0%}", f"{mean:.2%}", mean >= MIN_BUSY)
