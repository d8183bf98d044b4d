"""Whether anything is left of requests, however they end, and whether all counts of them agree.

    python -m bench.leaks [--requests 100000] [--seed 1] [--redis redis://127.0.0.1:6379/15]

Requests of tenants with every kind of limit go through whole gateways over the scripted engine: they finish, are left by their
clients at any moment, take too long, are refused, fail, or die with the engine. Each gateway serves a few thousand, then the next
one takes over its store. After each, nothing may be left (slots, reservations, places, seats, tasks, timers, objects), and
ledger, engine, limits, budgets, metrics and clients must tell the same. A seed asks the same every time; what comes first where
much ends at once is up to asyncio. In made-up time; with `--redis`, whose database must be empty, in real time. Prints the
figures as JSON; exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import structlog

from bench import virtual_time
from bench.leak_checks import Faults, check_metrics, check_nothing_left, check_rows, count_held, samples_of, sums_of
from bench.leak_load import DIES, RARE, Client, CountingEngine, Got, ask_of
from bench.leak_setup import PRICES, Counted, Figures, WatchedLimits, counted_in_redis, settings_of, tenants_of
from bench.processes import end_on_sigterm
from server.admission.redis_store import RedisStore
from server.app import create_app
from server.clock import Clock, SystemClock
from server.context import Tenant
from server.engine.base import Engine
from server.gateway import Gateway
from server.models import Price
from server.settings import Settings
from server.tenancy.snapshot import Snapshot
from server.usage.table import Spent

T = TypeVar("T")
ROUND: Final = 2000
CLIENTS: Final = 128
SEATS: Final = (4, 12, 24, 64)
"""Of engines; chance takes one. So queues are long, and empty."""
TURN_S: Final = 0.0002
STALL_S: Final = 0.3
"""One turn of the loop in 500 takes that long: what was due meanwhile all comes at once."""
MINUTE_S: Final = 55.0
"""In a round shorter than that, nothing has left the window of a minute."""


class Run:
    """Gateways one after the other, over one store in `folder`."""

    def __init__(
        self, folder: Path, num_requests: int, seed: int, redis_url: str | None = None, *, num_in_round: int = ROUND
    ) -> None:
        self.figures = Figures()
        self.faults = Faults()
        self._folder = folder
        self._seed = seed
        self._redis_url = redis_url
        self.is_real = redis_url is not None
        self._num_requests = num_requests
        self._num_in_round = min(num_in_round, num_requests)
        self._snapshot = Snapshot()
        self.keys: dict[str, str] = {}
        self._clock: Clock = SystemClock() if redis_url else virtual_time.LoopClock()

    def run(self) -> Figures:
        """Everything."""
        asyncio.run(self._make_tenants())
        spent: Mapping[str, Spent] = {}
        for number in range(-(-self._num_requests // self._num_in_round)):
            num_left = self._num_requests - number * self._num_in_round
            part = Round(self, number, min(self._num_in_round, num_left), spent)
            self._in_time(part.run(), self.chance(f"turns {number}"))
            spent = asyncio.run(self._drain())
            rows = self._new_rows()
            part.check(rows)
            self._add(part, rows)
            del part, rows
            gc.collect()
            self.figures.objects_alive.append(len(gc.get_objects()))
        alive = self.figures.objects_alive
        if len(alive) > 5:  # the first gateways fill what the process keeps: imports, compiled schemas
            self.faults.check("objects do not grow", True, alive[-1] < 1.03 * alive[4])
        self.figures.faults, self.figures.examples = dict(self.faults.counts), self.faults.examples
        return self.figures

    def make_gateway(self) -> tuple[Any, Gateway]:
        """A new one over the store, and its application."""

        async def no_engine() -> Engine:
            raise NotImplementedError

        app = create_app(self.settings(), no_engine, clock=self._clock)
        gateway: Gateway = app.state.gateway
        gateway.storage.keys.load(self._snapshot)
        gateway.storage.opened.set()
        return app, gateway

    def settings(self, prices: Mapping[str, tuple[float, float, float]] = PRICES[0], **more: Any) -> Settings:
        return settings_of(self._folder, self._redis_url, prices, **more)

    @property
    def tenants(self) -> Mapping[str, Tenant]:
        return self._snapshot.tenants

    def chance(self, of: str) -> random.Random:
        """The same for the same thing of a run with this seed."""
        return random.Random(f"{self._seed}:{of}")

    def counted(self, gateway: Gateway, tenant: Tenant) -> Counted:
        """What the limits' store counts of the tenant."""
        if self._redis_url is not None:
            return counted_in_redis(self._redis_url, tenant.name)
        standing = gateway.limits.standing(tenant)
        assert standing is not None
        return standing.used, standing.spent, standing.num_running

    def _in_time(self, work: Coroutine[Any, Any, T], chance: random.Random) -> T:
        def turn_s() -> float:
            return STALL_S if chance.random() < 0.002 else TURN_S

        return asyncio.run(work) if self.is_real else virtual_time.run(work, turn_s)

    async def _make_tenants(self) -> None:
        tenants = tenants_of(self._num_requests, self._num_in_round)
        app = create_app(self.settings(tenants=tenants), cast(Any, None), clock=SystemClock())
        storage = app.state.gateway.storage
        await storage.registry.apply_tenants(self.settings(tenants=tenants).tenants)
        for name in tenants:
            _, self.keys[name] = await storage.registry.create_key(name)
        self._snapshot = await storage.registry.snapshot()
        storage.ledger.close()
        await storage.database.close()

    async def _drain(self) -> Mapping[str, Spent]:
        """What the next gateway does first: the rows that the last one left, and what was spent of this day and month."""
        app = create_app(self.settings(), cast(Any, None), clock=self._clock)
        storage = app.state.gateway.storage
        await storage.ledger.adopt()
        await storage.ledger.flush(600.0)
        for what, count in storage.ledger.counts.items():
            if what != "written":
                self.faults.check("rows that were not written", 0, count, what)
        spent: Mapping[str, Spent] = await storage.ledger.spent_since(0, 0)
        storage.ledger.close()
        await storage.database.close()
        return spent

    def _new_rows(self) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self._folder / "gateway.db")) as connection:
            connection.row_factory = sqlite3.Row
            query = "SELECT * FROM ledger ORDER BY rowid LIMIT -1 OFFSET ?"
            return [dict(row) for row in connection.execute(query, (self.figures.rows,))]

    def _add(self, part: Round, rows: list[dict[str, Any]]) -> None:
        figures = self.figures
        figures.requests += len(part.gots)
        figures.gateways += 1
        figures.engines_died += part.died
        figures.times_away_from_redis += part.num_away
        figures.drained += part.gateway.draining
        figures.seconds_in_loops = round(figures.seconds_in_loops + part.seconds, 1)
        figures.outcomes.update(row["outcome"] for row in rows)
        figures.endings.update(got.ask.ending for got in part.gots)
        figures.reserved += len(part.limits.num_settled)
        figures.rows += len(rows)
        for name in ("input_tokens", "cached_tokens", "output_tokens", "discarded_tokens", "cost_nano_usd"):
            setattr(figures, name, getattr(figures, name) + sum(row[name] for row in rows))
        figures.engine_generated_tokens += sum(one.num_output_tokens for of in part.engine.asked.values() for one in of)


class Round:
    """One gateway and its requests. Every second engine dies, every fourth gateway is told to stop, before all have come."""

    gateway: Gateway
    engine: CountingEngine
    limits: WatchedLimits

    def __init__(self, whole: Run, number: int, num_requests: int, spent: Mapping[str, Spent]) -> None:
        self._whole = whole
        self._number = number
        self._num_requests = num_requests
        self._spent = spent
        self._chance = whole.chance(f"engine {number}")
        self._counted: dict[str, Counted] = {}
        self.gots: list[Got] = []
        self.seconds = 0.0
        self.died = False
        self.num_away = 0

    async def run(self) -> None:
        """Serve all requests, and look at what they left."""
        whole = self._whole
        app, self.gateway = whole.make_gateway()
        gateway, chance = self.gateway, self._chance
        self.engine = CountingEngine(chance, chance.choice(SEATS))
        self.limits = WatchedLimits(gateway.limits)
        gateway.admission.store = self.limits
        gateway.limits.seed(self._spent)
        gateway.open(self.engine, b"secret of the measurement")
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, what: whole.faults.check("complaints of the loop", None, what["message"]))
        held_before = count_held()
        others = []
        if isinstance(gateway.limits, RedisStore):
            others.append(loop.create_task(gateway.limits.run()))
            await asyncio.sleep(0.3)
        since_s = loop.time()
        numbers = iter(range(self._num_requests))
        async with asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(self._ask_on(app, numbers))
        self.seconds = loop.time() - since_s
        self.died = self.engine.dead
        if isinstance(gateway.limits, RedisStore):
            while not gateway.limits.teller.has_told_all:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
            self.num_away = gateway.limits.num_away
        self._counted = {name: whole.counted(gateway, tenant) for name, tenant in whole.tenants.items()}
        self._samples = samples_of(gateway)
        check_nothing_left(whole.faults, gateway, self.engine, others, held_before)
        if not whole.is_real:
            await asyncio.sleep(62)
            for name, tenant in whole.tenants.items():
                whole.faults.check("the minute after a minute", (0, 0, 0, 0), whole.counted(gateway, tenant)[0], name)
        for other in others:
            other.cancel()
        if others:
            await asyncio.wait(others)
        gateway.storage.ledger.close()
        await self.engine.close()

    def check(self, rows: list[dict[str, Any]]) -> None:
        """All counts against each other; `rows` are those of this round."""
        faults, whole = self._whole.faults, self._whole
        prices = {
            name: {Price.of(whole.settings(of).models[name].price_per_million_tokens_usd) for of in PRICES} for name in PRICES[0]
        }
        check_rows(faults, self.gots, rows, self.engine, prices)
        check_metrics(faults, self._samples, rows)
        faults.check("settlements of a ticket", {1} if self.limits.num_settled else set(), set(self.limits.num_settled))
        sums = sums_of(rows)
        for name, (used, spent, num_running) in self._counted.items():
            used_by_rows, spent_by_rows = sums.get(name, ((0, 0, 0, 0), (0, 0, 0, 0)))
            day_tokens, day_nano_usd, month_tokens, month_nano_usd = self._spent.get(name, (0, 0, 0, 0))
            before = (day_tokens, month_tokens, day_nano_usd, month_nano_usd)
            faults.check("requests that run", 0, num_running, name)
            faults.check("spent of budgets", tuple(map(sum, zip(before, spent_by_rows, strict=True))), spent, name)
            if self.seconds < MINUTE_S and not (whole.is_real and (self._number or self.num_away)):
                faults.check("used of the minute", used_by_rows, used, name)

    async def _ask_on(self, app: Any, numbers: Iterator[int]) -> None:
        """One after the other, as long as there are numbers."""
        names = tuple(self._whole.tenants)
        for number in numbers:
            share = number / self._num_requests
            dies = self._number % 2 == 0 and share > 0.9 and not self.engine.dead
            word = RARE[number // 30 % len(RARE)] if number % 30 == 0 else DIES if dies and number % 3 == 1 else None
            request_id = f"r{self._number}-{number}"
            chance = self._whole.chance(request_id)
            ask = ask_of(chance, request_id, names, word)
            await asyncio.sleep(chance.expovariate(5.0))
            if number == self._num_requests // 2:
                self.gateway.models.reprice(self._whole.settings(PRICES[1]).models)
            if self._number % 4 == 3 and share > 0.97 and not self.gateway.draining:
                self.gateway.drain()
                self.gateway.end_answers()
            self.gots.append(await Client(app, ask, self._whole.keys[ask.tenant]).run())


def main() -> int:
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--redis", help="the URL of an empty database, where limits are counted instead of in memory")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)
    since_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="k3gw-leaks-") as folder:
        figures = Run(Path(folder), options.requests, options.seed, options.redis).run()
    print(json.dumps({**vars(figures), "seconds": round(time.monotonic() - since_s, 1)}, indent=2))
    return 1 if figures.faults else 0


if __name__ == "__main__":
    sys.exit(main())
