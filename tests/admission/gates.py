"""Admission over either store, on a clock that the test moves; Redis is made to read the time from a key."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from server.admission import redis_link
from server.admission.admission import Admission
from server.admission.limits import Estimate, Usage
from server.admission.memory import MemoryStore
from server.admission.redis_store import RedisStore
from server.admission.ticket import Ticket
from server.clock import ManualClock
from server.context import Budget, Limits, RequestContext, Tenant
from server.models import Price, ServedModel
from tests.services.redis import RedisServer

NOW_S = 1_796_040_000.0
"""2026-11-30 12:00 UTC: the last day of a month, in the middle of it."""
FREE = ServedModel("kimi-k3", "kimi_k3", ("reasoning",))
PAID = ServedModel("kimi-k3", "kimi_k3", ("reasoning",), price=Price(input=3_000_000, cached_input=300_000, output=15_000_000))
"""In nano-USD a token: 3 input, 0.3 cached, 15 output."""
TIME = b"local time = call('TIME')"
TEST_TIME = b"local now = tonumber(call('GET', 'now_ms')); local time = {math.floor(now / 1000), now % 1000 * 1000}"


def manual_time(patch: pytest.MonkeyPatch) -> None:
    """From now on, stores made in this test go by the key `now_ms` instead of Redis's clock."""
    assert TIME in redis_link.SCRIPT
    script = redis_link.SCRIPT.replace(TIME, TEST_TIME)
    patch.setattr(redis_link, "SCRIPT", script)
    patch.setattr(redis_link, "SCRIPT_SHA", hashlib.sha1(script).hexdigest())


def tenant(name: str = "acme", budget: Budget | None = None, **limits: int | None) -> Tenant:
    return Tenant(name, limits=Limits(**limits), budget=budget or Budget())


class Gate:
    """One `Admission`, as one replica has it."""

    def __init__(self, store: MemoryStore | RedisStore, clock: ManualClock, server: RedisServer | None = None) -> None:
        self.store = store
        self.clock = clock
        self.server = server
        self.admission = Admission(store, clock)
        self.slot_s = 0.125 if server is None else 0.25
        self.set_time(clock.now_s)

    async def reserve(
        self,
        who: Tenant,
        num_input: int = 10,
        num_output: int = 5,
        *,
        has_cap: bool = True,
        num_choices: int = 1,
        model: ServedModel = FREE,
    ) -> Ticket:
        estimate = Estimate(num_input, num_output, has_cap, num_choices)
        return await self.admission.reserve(RequestContext("r", who), model, estimate)

    def advance(self, seconds: float) -> None:
        self.set_time(self.clock.now_s + seconds)

    def set_time(self, now_s: float) -> None:
        self.clock.now_s = now_s
        if self.server is not None:
            self.server.client.set("now_ms", round(now_s * 1000))

    async def told(self) -> None:
        """Wait until Redis has been told everything."""
        if isinstance(self.store, RedisStore):
            async with asyncio.timeout(60):
                while self.store.is_away or not self.store.teller.has_told_all:
                    await asyncio.sleep(0.001)

    async def used(self, who: Tenant) -> dict[str, Any]:
        """What is counted of the tenant, looked up beside the store where that is Redis."""
        await self.told()
        if isinstance(self.store, MemoryStore):
            standing = self.store.standing(who)
            used, spent, running = standing.used, standing.spent, standing.num_running
        else:
            assert self.server is not None
            client, base = self.server.client, f"k3gw:{{{who.name}}}"
            used = tuple(int(value or 0) for value in client.hmget(f"{base}:minute", list("riuo")))
            day, month = int(self.clock.now_s) // 86400, max(client.keys(f"{base}:m[0-9]*"), default="")
            of_day, of_month = client.hmget(f"{base}:d{day}", ["t", "n"]), client.hmget(month, ["t", "n"]) if month else [0, 0]
            spent = tuple(int(value or 0) for value in (of_day[0], of_month[0], of_day[1], of_month[1]))
            running = client.zcard(f"{base}:leases")
            assert running == client.hlen(f"{base}:holds")
        return {"used": used, "spent": spent, "running": running}


def memory_gate() -> Gate:
    clock = ManualClock(NOW_S)
    return Gate(MemoryStore(clock), clock)


@asynccontextmanager
async def redis_gate(server: RedisServer, clock: ManualClock | None = None, **options: Any) -> AsyncIterator[Gate]:
    """A replica. Its deadline is long and its leases last, where the test is not about these: the machine may be busy, and the clock is moved."""
    clock = clock or ManualClock(NOW_S)
    store = RedisStore(server.url, clock, **{"deadline_s": 5.0, "lease_s": 1e6, "retry_s": 0.01, **options})
    gate = Gate(store, clock, server)
    running = asyncio.ensure_future(store.run())
    try:
        yield gate
        await asyncio.sleep(0)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


USED = Usage(num_input_tokens=10, num_cached_tokens=0, num_output_tokens=5)
