"""The same of a gateway that runs: its tenants over HTTP, its engine as it is, in time as it passes.

The gateway must be idle otherwise. Tenants `fairness-…` are made by the admin API, and their keys are revoked in the end. What
tenants are given is what the gateway's `k3gw_fair_service_tokens_total` says, and beside it what the ledger charges them.

A real engine slows with each request that it runs, so the light tenant's time to its first token is told in seconds and in steps
of the engine (vLLM's own count), and beside two others: what it is while the engine is full and nobody waits, and what it is to
be one of the flood.
"""

from __future__ import annotations

import asyncio
import random
import re
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import httpx

from bench.fair_shares import Found, Load, Shape, shares
from server.context import Tenant

NAMES: Final = "fairness-"
TALK: Final = Shape((60, 240), (20, 60))
LIGHT: Final = Shape((100, 100), (10, 10))
LONG: Final = Shape((150, 300), (100, 200))
"""For an engine that makes a hundred tokens a second, in all: seats must change hands within seconds."""
_WORDS: Final = ("river", "stone", "cloud", "green", "table", "house", "light", "paper", "music", "water", "bread", "chair")
_LOOK_S: Final = 0.5
_MAX_WARM_UP_S: Final = 30.0
STEPS: Final = "vllm:iteration_tokens_total_count"
_REFUSED: Final = frozenset({429, 503, 504})


class RunningGateway:
    """A `Target` over HTTP. `num_seats`: those of its engine; `reserved` of them are not open to all."""

    def __init__(self, url: str, admin_key: str, num_seats: int) -> None:
        self.num_seats = num_seats
        self.url = url
        self.num_common = num_seats - num_seats // 16
        self._admin = {"authorization": f"Bearer {admin_key}"}
        self._http = httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=1000))
        self._random = random.Random(0)
        self._keys: dict[str, tuple[str, str]] = {}
        self._service: dict[str, float] = {}
        self._busy: float | None = None
        self.running: list[float] = []
        self.charged: list[dict[str, dict[str, int]]] = []
        self.num_refused = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[RunningGateway]:
        """Keep an eye on the gateway; revoke in the end what was made."""
        async with self._http:
            try:
                async with asyncio.TaskGroup() as group:
                    watching = group.create_task(self._watch())
                    yield self
                    watching.cancel()
            finally:
                for key_id, _ in self._keys.values():
                    await self._http.delete(f"/admin/v1/keys/{key_id}", headers=self._admin)

    async def put(self, tenant: Tenant) -> None:
        """Make or change a tenant, with a key."""
        settings = {"weight": tenant.weight}
        answer = await self._http.put(f"/admin/v1/tenants/{tenant.name}", json=settings, headers=self._admin)
        answer.raise_for_status()
        if tenant.name not in self._keys:
            answer = await self._http.post("/admin/v1/keys", json={"tenant": tenant.name}, headers=self._admin)
            answer.raise_for_status()
            self._keys[tenant.name] = answer.json()["id"], answer.json()["secret"]

    async def ask(self, tenant: Tenant, num_input_tokens: int, num_output_tokens: int) -> float:
        """As in `Target`."""
        return (await self.time(tenant, num_input_tokens, num_output_tokens, counts_steps=False))[0]

    async def time(
        self, tenant: Tenant, num_input_tokens: int, num_output_tokens: int, *, counts_steps: bool = True
    ) -> tuple[float, float]:
        """Have one request answered; seconds and engine steps until its first token.

        Who is refused asks again a second later, and its time runs on.
        """
        words = " ".join(self._random.choices(_WORDS, k=max(1, num_input_tokens - 20)))
        body = {
            "model": "default",
            "messages": [{"role": "user", "content": words}],
            "max_tokens": num_output_tokens,
            "stream": True,
            "ignore_eos": True,
            "thinking": {"type": "disabled"},
        }
        headers = {"authorization": f"Bearer {self._keys[tenant.name][1]}"}
        before = await self.metric(STEPS) if counts_steps else 0.0
        begun_s = time.monotonic()
        while True:
            async with self._http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
                if answer.status_code not in _REFUSED:
                    answer.raise_for_status()
                    lines = answer.aiter_lines()
                    await anext(lines)
                    ttft_s = time.monotonic() - begun_s
                    num_steps = await self.metric(STEPS) - before if counts_steps else 0.0
                    async for line in lines:
                        if line.startswith('data: {"error"'):
                            raise RuntimeError(f"the answer ended in an error: {line}")
                    return ttft_s, num_steps
            self.num_refused += 1
            await asyncio.sleep(1)

    def take_service(self) -> Mapping[str, float]:
        """As in `Target`, and look into the ledger: `charged`, at the last two calls, last first. Blocks meanwhile."""
        text = httpx.get(f"{self.url}/metrics", headers=self._admin).text
        now = {
            name: float(value)
            for name, value in re.findall(r'^k3gw_fair_service_tokens_total\{tenant="(.+)"\} (\S+)$', text, re.M)
        }
        taken = {name: value - self._service.get(name, 0.0) for name, value in now.items()}
        self._service = now
        self.charged = [{name: self._charged(name) for name in self._keys}, *self.charged[:1]]
        return taken

    def busy(self) -> float | None:
        return self._busy

    async def metric(self, name: str, labels: str = "") -> float:
        """The sum of a metric's samples whose labels have `labels`."""
        text = (await self._http.get("/metrics", headers=self._admin)).text
        samples = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", text, re.M)
        return sum(float(value) for found, value in samples if labels in found)

    def _charged(self, tenant: str) -> dict[str, int]:
        """Its sums in the ledger, of the last day."""
        query = {"tenant": tenant, "since": "1d"}
        lines = httpx.get(f"{self.url}/admin/v1/usage", params=query, headers=self._admin).json()["data"]
        return {name: lines[0][name] if lines else 0 for name in ("requests", "cost_nano_usd", "output_tokens")}

    async def _watch(self) -> None:
        while True:
            status = (await self._http.get("/admin/v1/status", headers=self._admin)).json()
            waits = status["queued_requests"] > 0
            self._busy = status["seated_requests"] / self.num_common if waits else None
            if waits:
                self.running.append(status["engine_running_requests"])
            await asyncio.sleep(_LOOK_S)


@dataclass
class Times:
    """Of requests until their first token: seconds, and steps of the engine."""

    seconds: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    num_unanswered: int = 0
    mean_queued_s: float | None = None

    def told(self) -> str:
        if not self.seconds:
            return f"none answered in time, of {self.num_unanswered}"
        queued = "" if self.mean_queued_s is None else f"; {1000 * self.mean_queued_s:.1f} ms in the queue, mean"
        (p50, p99), (steps50, steps99) = _quantiles(self.seconds), _quantiles(self.steps)
        return f"{1000 * p50:.0f} / {1000 * p99:.0f} ms, {steps50:.0f} / {steps99:.0f} steps (of {len(self.seconds)}){queued}"


def _quantiles(values: Sequence[float]) -> tuple[float, float]:
    return statistics.median(values), sorted(values)[int(len(values) * 0.99)]


async def first_tokens(gateway: RunningGateway, load: Load, tenant: Tenant, seconds: float) -> Times:
    """One short request now and then, one after the other."""
    times = Times()
    waits = [f"k3gw_queue_seconds_{part}" for part in ("sum", "count")]
    labels = f'tenant="{tenant.name}"'
    before = [await gateway.metric(name, labels) for name in waits]
    begun_s = time.monotonic()
    while (left_s := begun_s + seconds - time.monotonic()) > 0:
        await asyncio.sleep(load.random.expovariate(2.0))
        try:
            async with asyncio.timeout(left_s + 5):
                ttft_s, num_steps = await gateway.time(tenant, LIGHT.num_input_tokens[0], LIGHT.num_output_tokens[0])
        except TimeoutError:
            times.num_unanswered += 1
        else:
            times.seconds.append(ttft_s)
            times.steps.append(num_steps)
    queued_s, num_queued = [await gateway.metric(name, labels) - then for name, then in zip(waits, before, strict=True)]
    times.mean_queued_s = queued_s / num_queued if num_queued else None
    return times


async def light(gateway: RunningGateway, load: Load, seconds: float, num_flood: int) -> list[Found]:
    """A light tenant alone, beside an engine that is just full, beside a flood, and as a part of it."""
    tenant, flood = Tenant(f"{NAMES}light"), Tenant(f"{NAMES}flood")
    runs = {
        "alone": (tenant, 0),
        "engine full, nobody waits": (tenant, gateway.num_common),
        f"beside a flood of {num_flood}": (tenant, num_flood),
        f"as one of a flood of {num_flood}": (flood, num_flood),
    }
    for one in (tenant, flood):
        await gateway.put(one)
    times: list[Times] = []
    found: list[Found] = []
    for name, (asker, num_open) in runs.items():
        load.busy.clear()

        async def measured(asker: Tenant = asker, num_open: int = num_open) -> None:
            await asyncio.sleep(_warm_up_s(seconds) if num_open else 0)
            times.append(await first_tokens(gateway, load, asker, seconds))

        await load.beside(measured(), [(flood, LONG, num_open)] if num_open else [])
        found.append(_told(f"light TTFT p50 / p99, {name}", times[-1].told()))
    alone, full, beside, _ = times
    found += [_compared(beside, other, name) for name, other in (("alone", alone), ("a full engine", full))]
    return found


async def weights(gateway: RunningGateway, load: Load, seconds: float, weight: float) -> list[Found]:
    """Two backlogged tenants, and what the ledger charged them meanwhile."""
    sides = [Tenant(f"{NAMES}one"), Tenant(f"{NAMES}other", weight=weight)]
    for tenant in sides:
        await gateway.put(tenant)
    gateway.running.clear()
    name = f"weights 1:{weight:g}"
    found = await shares(load, seconds, [(tenant, TALK) for tenant in sides], name, warm_up_s=_warm_up_s(seconds))
    after, before = gateway.charged
    for what in ("cost_nano_usd", "output_tokens"):
        one, other = (after[tenant.name][what] - before[tenant.name][what] for tenant in sides)
        figures = f"{one} : {other} = 1 : {other / max(1, one):.2f}"
        found.append(_told(f"{name}: {what} of requests that ended meanwhile, by the ledger", figures))
    mean = statistics.fmean(gateway.running) if gateway.running else 0.0
    return [*found, _told(f"{name}: running in the engine, by its own count", f"{mean:.1f} of {gateway.num_common} seats")]


def _warm_up_s(seconds: float) -> float:
    return min(_MAX_WARM_UP_S, seconds / 2)


def _compared(times: Times, other: Times, name: str) -> Found:
    """How much longer the flood makes it take."""
    if not (times.seconds and other.seconds):
        return _told(f"beside the flood, to {name}", "unknown: nothing was answered in time")
    seconds, steps = (
        [mine / theirs for mine, theirs in zip(_quantiles(beside), _quantiles(before), strict=True)]
        for beside, before in ((times.seconds, other.seconds), (times.steps, other.steps))
    )
    figures = f"{seconds[0]:.2f} / {seconds[1]:.2f} x in seconds, {steps[0]:.2f} / {steps[1]:.2f} x in steps"
    return _told(f"light TTFT p50 / p99 beside the flood, to {name}", figures)


def _told(what: str, figures: str) -> Found:
    return Found(what, "-", figures, is_met=True)


async def measure(url: str, admin_key: str, num_seats: int, seconds: float, seed: int, num_flood: int) -> list[Found]:
    """Everything, one after the other."""
    async with RunningGateway(url, admin_key, num_seats).open() as gateway:
        load = Load(gateway, seed)
        found = await light(gateway, load, seconds, num_flood)
        for weight in (1, 3):
            found += await weights(gateway, load, seconds, weight)
        return [*found, _told("refused and asked again", str(gateway.num_refused))]
