"""What the leak measurement runs on: tenants with every kind of limit, settings, limits that are watched; and what it tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from redis import Redis

from server.admission.limits import Decision, Demand, Four, LimitStore, Standing, Usage
from server.context import Tenant
from server.settings import Settings

Counted = tuple[Four, Four, int]
"""Of a tenant: the minute, budgets (both as in `server.admission.limits.Standing`), and requests that run."""

PRICES: Final = (
    {"priced": (3.0, 0.3, 15.0), "strict": (0.6, 0.15, 2.5), "free": (0.0, 0.0, 0.0)},
    {"priced": (2.7, 0.1, 9.9), "strict": (0.7, 0.0, 2.5), "free": (0.0, 0.0, 0.0)},
)


@dataclass
class Figures:
    """What a run did and found."""

    requests: int = 0
    gateways: int = 0
    engines_died: int = 0
    drained: int = 0
    times_away_from_redis: int = 0
    seconds_in_loops: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    reserved: int = 0
    rows: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    discarded_tokens: int = 0
    engine_generated_tokens: int = 0
    cost_nano_usd: int = 0
    objects_alive: list[int] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)


def tenants_of(num_requests: int, num_in_round: int) -> dict[str, dict[str, Any]]:
    """Tenants of every kind, with limits and budgets that so many requests reach. `num_in_round`: in about a minute."""
    each, share = num_requests / 14, num_in_round / 14
    return {
        "free": {},
        "heavy": {"weight": 10},
        "light": {"weight": 0.1},
        "requests": {"limits": {"requests_per_minute": max(1, int(share * 0.7))}},
        "input": {"limits": {"input_tokens_per_minute": int(share * 110) + 1000}},
        "uncached": {"limits": {"uncached_input_tokens_per_minute": int(share * 70) + 1000}, "cache_group": "shared"},
        "output": {"limits": {"output_tokens_per_minute": int(share * 30) + 400}, "cache_group": "shared"},
        "few": {"limits": {"concurrent_requests": 2}},
        "short": {"limits": {"max_context_tokens": 450}},
        "tokens-day": {"budget": {"tokens_per_day": int(each * 150) + 1000}},
        "tokens-month": {"budget": {"tokens_per_month": int(each * 180) + 1000}},
        "usd-day": {"budget": {"usd_per_day": round(each * 0.00012 + 0.003, 6)}},
        "all": {
            "limits": {
                "requests_per_minute": max(2, int(share * 0.8)), "input_tokens_per_minute": int(share * 220) + 1000,
                "output_tokens_per_minute": int(share * 60) + 200, "concurrent_requests": 6,
            },
            "budget": {"usd_per_month": round(each * 0.0003 + 0.01, 6), "tokens_per_month": int(each * 300) + 1000},
        },
        "suspended": {"suspended": True},
    }  # fmt: skip


def settings_of(folder: Path, redis_url: str | None, prices: Mapping[str, tuple[float, float, float]], **more: Any) -> Settings:
    """Of every gateway, and of the first, which makes the tenants."""
    policies: dict[str, dict[str, Any]] = {
        "priced": {"tool_call_policy": "report"}, "strict": {"tool_call_policy": "retry", "tool_call_retries": 1}, "free": {},
    }  # fmt: skip
    models = {
        name: {
            **policies[name],
            "price_per_million_tokens_usd": dict(zip(("input", "cached_input", "output"), price, strict=True)),
        }
        for name, price in prices.items()
    }
    storage = {"ledger_url": f"sqlite:///{folder}/gateway.db", "spool_path": folder / "spool"}
    return Settings.model_validate(
        {
            "engine": {"kind": "scripted"},
            "models": models,
            "admission": {"queue_timeout_s": 0.4, "request_timeout_s": 1.2, "max_queued_per_tenant": 12, "max_queued": 100},
            "storage": {**storage, **({"limits_url": redis_url} if redis_url else {})},
            "http": {"keepalive_interval_s": 0.2},
            **more,
        }
    )


class WatchedLimits:
    """A store of limits; how often was each hold settled?"""

    def __init__(self, store: LimitStore) -> None:
        self._store = store
        self.num_settled: list[int] = []

    async def reserve(self, demand: Demand) -> Decision:
        decision = await self._store.reserve(demand)
        if decision.hold is not None:
            number, settle = len(self.num_settled), decision.hold.settle
            self.num_settled.append(0)

            def counted(usage: Usage) -> None:
                self.num_settled[number] += 1
                settle(usage)

            decision.hold = cast(Any, _WatchedHold(decision.hold, counted))
        return decision

    def peek(self, demand: Demand) -> Decision | None:
        return self._store.peek(demand)

    def standing(self, tenant: Tenant) -> Standing | None:
        return self._store.standing(tenant)

    def seed(self, spent: Mapping[str, Four]) -> None:
        self._store.seed(spent)


class _WatchedHold:
    """A hold whose `settle` is another."""

    def __init__(self, hold: Any, settle: Callable[[Usage], None]) -> None:
        self._hold = hold
        self.settle = settle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hold, name)


def counted_in_redis(url: str, tenant: str) -> Counted:
    """What Redis counts of a tenant, looked up beside the store."""

    def numbers(key: str, fields: str) -> list[int]:
        return [int(value or 0) for value in cast(list[Any], client.hmget(key, list(fields)))]

    base = f"k3gw:{{{tenant}}}"
    with closing(Redis.from_url(url, decode_responses=True)) as client:
        used = numbers(f"{base}:minute", "riuo")
        sums = []
        for window in "dm":
            keys = sorted(cast(list[str], client.keys(f"{base}:{window}[0-9]*")))
            sums.append(numbers(keys[-1], "tn") if keys else [0, 0])
        num_running = max(cast(list[int], [client.zcard(f"{base}:leases"), client.hlen(f"{base}:holds")]))
    return (used[0], used[1], used[2], used[3]), (sums[0][0], sums[1][0], sums[0][1], sums[1][1]), num_running
