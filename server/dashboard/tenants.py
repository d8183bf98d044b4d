"""The table of tenants: what each uses, against its limits, its budget and its share of the engine.

Role: one page of rows at a time, of those that match and in the order that was asked for, whatever number of tenants there is.
Invariant: what is costly is made only for the rows of the page, or for what they are put in order by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from server.admission.limits import INPUT, NO_BUDGET, OUTPUT, REQUESTS, UNCACHED, Standing, budget_limits
from server.admission.rate_headers import remaining_ratio
from server.context import Tenant
from server.dashboard.counts import TenantCounts, TenantTokens, tenant_counts
from server.dashboard.parts import Elsewhere
from server.dashboard.points import Figure, ratio
from server.gateway import Gateway
from server.metrics.catalog import OTHER

SNAPSHOT_S: Final = 10.0
WINDOW_S: Final = 60.0
MAX_ROWS: Final = 100
_FRESH_S: Final = 5
_BUDGETS: Final = ("tokens_per_day", "tokens_per_month", "nano_usd_per_day", "nano_usd_per_month")
_NOTHING: Final = TenantCounts()


@dataclass(slots=True, frozen=True)
class View:
    """Which rows are wanted. `text`: part of the name, in any case; `page` counts from 0."""

    text: str = ""
    sort: str = "traffic"
    descending: bool = True
    page: int = 0
    num_rows: int = 25


@dataclass(slots=True, frozen=True)
class _Snapshot:
    """Tokens of tenants, and tenant -> service, at a moment of the monotonic clock."""

    at_s: float
    tokens: TenantTokens
    service: Mapping[str, float]


class TenantTable:
    """The tenants of one gateway. `look` must be called from time to time, for what they did in the last minute."""

    def __init__(self, gateway: Gateway, elsewhere: Elsewhere) -> None:
        self._gateway = gateway
        self._elsewhere = elsewhere
        self._snapshots: deque[_Snapshot] = deque()

    @property
    def is_due(self) -> bool:
        """Whether the last look was long enough ago."""
        snapshots = self._snapshots
        return not snapshots or self._gateway.clock.monotonic_s() - snapshots[-1].at_s >= SNAPSHOT_S - 0.5

    def look(self) -> None:
        """Remember how things stand, if that is due."""
        if not self.is_due:
            return
        now_s, snapshots = self._gateway.clock.monotonic_s(), self._snapshots
        while len(snapshots) > 1 and now_s - snapshots[1].at_s >= WINDOW_S - 0.5:
            snapshots.popleft()
        snapshots.append(
            _Snapshot(now_s, TenantTokens(self._gateway, self._elsewhere.tenant_counts), dict(self._elsewhere.service()))
        )

    def page(self, view: View) -> dict[str, Any]:
        """Rows, and how many tenants there are and match, as JSON."""
        look = _Look(self._gateway, self._elsewhere, self._snapshots[0] if self._snapshots else None)
        text = view.text.casefold()
        matching = [tenant for name, tenant in look.tenants.items() if text in name.casefold()]
        matching.sort(key=lambda tenant: tenant.name)
        matching = look.ordered(matching, SORTS[view.sort], descending=view.descending)
        num_pages = max(1, -(-len(matching) // view.num_rows))
        first = min(view.page, num_pages - 1) * view.num_rows
        return {
            "num_tenants": len(look.tenants),
            "num_matching": len(matching),
            "page": first // view.num_rows,
            "num_pages": num_pages,
            "window_s": round(look.span_s, 1),
            "rows": [look.row(tenant) for tenant in matching[first : first + view.num_rows]],
        }


class _Look:
    """What is known of tenants now, and from the minute before."""

    def __init__(self, gateway: Gateway, elsewhere: Elsewhere, before: _Snapshot | None) -> None:
        keys, service, now_s = gateway.storage.keys, elsewhere.service(), gateway.clock.monotonic_s()
        self._admission = gateway.admission
        self._elsewhere = elsewhere
        self._accounts = None if gateway.queue is None else gateway.queue.accounts
        self._unix_s = gateway.clock.unix_s()
        self._counts = tenant_counts(gateway, elsewhere.tenant_counts)
        self._tokens_before = {} if before is None else before.tokens.by_tenant
        self.span_s = 0.0 if before is None else now_s - before.at_s
        self.tenants = dict(keys.tenants())
        for name in self._counts:  # tenants of the settings are in no store
            if name not in self.tenants and (tenant := keys.tenant(name)) is not None:
                self.tenants[name] = tenant
        service_before = service if before is None else before.service
        served = {name: given - service_before.get(name, 0.0) for name, given in service.items()}
        self._served = {name: given for name, given in served.items() if given > 0}
        self._all_served = sum(self._served.values())
        self._contenders = (self._served.keys() | elsewhere.waiting()) & self.tenants.keys()
        self._all_weights = sum(self.tenants[name].weight for name in self._contenders)

    def ordered(self, tenants: list[Tenant], figure: Sort, *, descending: bool) -> list[Tenant]:
        """By `figure`, those alike as they come; those of which it is not known come last, whichever way."""
        valued = [(figure(self, tenant), tenant) for tenant in tenants]
        known = sorted((pair for pair in valued if pair[0] is not None), key=lambda pair: pair[0], reverse=descending)
        return [*(tenant for _, tenant in known), *(tenant for value, tenant in valued if value is None)]

    def row(self, tenant: Tenant) -> dict[str, Any]:
        """All that the table shows of one tenant. A limit or a budget is `[used, limit]`, null without one."""
        limits, used, spent = tenant.limits, self._used(tenant), self._spent(tenant)
        return {
            "name": tenant.name,
            "suspended": tenant.suspended,
            "weight": tenant.weight,
            "input_tokens_per_s": self._rate(tenant, "num_input_tokens"),
            "output_tokens_per_s": self._rate(tenant, "num_output_tokens"),
            "service_share": ratio(self._served.get(tenant.name, 0.0), self._all_served),
            "fair_share": ratio(tenant.weight, self._all_weights) if tenant.name in self._contenders else None,
            "queued": self.queued(tenant),
            "running": self.running(tenant),
            "concurrent_requests": limits.concurrent_requests,
            "requests_per_minute": [used[REQUESTS], limits.requests_per_minute],
            "input_tokens_per_minute": [used[INPUT], limits.input_tokens_per_minute],
            "uncached_input_tokens_per_minute": [used[UNCACHED], limits.uncached_input_tokens_per_minute],
            "output_tokens_per_minute": [used[OUTPUT], limits.output_tokens_per_minute],
            "budget": {
                name: [taken, limit]
                for name, taken, limit in zip(_BUDGETS, spent, budget_limits(tenant.budget), strict=True)
                if limit is not None
            },
            "budget_left": self.budget_left(tenant),
            "cache_hit_ratio": self.cache_hit(tenant),
            **self._totals(tenant),
        }

    def counts(self, tenant: Tenant) -> TenantCounts | None:
        """Since the gateway's start; None for a tenant that is counted together with others, beyond `metrics.max_tenants`."""
        counts = self._counts.get(tenant.name)
        return _NOTHING if counts is None and OTHER not in self._counts else counts

    def traffic(self, tenant: Tenant) -> int | None:
        """Tokens in and out, in the last minute."""
        now, before = self.counts(tenant), self._tokens_before.get(tenant.name, _NOTHING)
        if now is None:
            return None
        return now.num_input_tokens + now.num_output_tokens - before.num_input_tokens - before.num_output_tokens

    def requests(self, tenant: Tenant) -> int | None:
        """Since the start."""
        counts = self.counts(tenant)
        return None if counts is None else counts.num_requests

    def refused(self, tenant: Tenant) -> int | None:
        """Since the start."""
        counts = self.counts(tenant)
        return None if counts is None else counts.num_refused

    def service(self, tenant: Tenant) -> float:
        """What the fair queue counted in the last minute."""
        return self._served.get(tenant.name, 0.0)

    def cache_hit(self, tenant: Tenant) -> Figure:
        """Of all prompts so far, the part found in the prefix cache."""
        counts = self.counts(tenant)
        return None if counts is None else ratio(counts.num_cached_tokens, counts.num_input_tokens)

    def running(self, tenant: Tenant) -> int:
        """Requests under way, as its limit counts them; where that is not fresh, those with a place at this replica.

        What its limit counts is told to one worker at a time, so others may have given more places since.
        """
        standing, num_places = self._standing(tenant), sum(self._places(tenant))
        if standing is None or self._unix_s - standing.unix_s > _FRESH_S:
            return num_places
        return max(standing.num_running, num_places) if self._elsewhere.tenants else standing.num_running

    def queued(self, tenant: Tenant) -> int:
        """Requests that wait for a seat."""
        return self._places(tenant)[1]

    def budget_left(self, tenant: Tenant) -> Figure:
        """Of the tightest budget; None where it has none."""
        if tenant.budget == NO_BUDGET:
            return None
        standing = self._standing(tenant)
        return 1.0 if standing is None else remaining_ratio(tenant, standing, self._unix_s)

    def _totals(self, tenant: Tenant) -> dict[str, int | None]:
        """Since the start."""
        counts = self.counts(tenant)
        return {
            "requests": None if counts is None else counts.num_requests,
            "refused": None if counts is None else counts.num_refused,
            "input_tokens": None if counts is None else counts.num_input_tokens,
            "cached_tokens": None if counts is None else counts.num_cached_tokens,
            "output_tokens": None if counts is None else counts.num_output_tokens,
        }

    def _rate(self, tenant: Tenant, name: str) -> Figure:
        counts, before = self.counts(tenant), self._tokens_before.get(tenant.name, _NOTHING)
        if self.span_s <= 0 or counts is None:
            return None
        num_tokens: int = getattr(counts, name) - getattr(before, name)
        return round(num_tokens / self.span_s, 3)

    def _standing(self, tenant: Tenant) -> Standing | None:
        return self._elsewhere.standing(tenant.name, self._admission.store.standing(tenant))

    def _places(self, tenant: Tenant) -> tuple[int, int]:
        """Seats it has, and requests that wait."""
        account = None if self._accounts is None else self._accounts.get(tenant.name)
        num_seated, num_waiting = self._elsewhere.places(tenant.name)
        return (
            (num_seated, num_waiting) if account is None else (num_seated + account.num_seated, num_waiting + account.num_waiting)
        )

    def _used(self, tenant: Tenant) -> tuple[int, ...]:
        """Of the minute. What was in it when a shared store last spoke of it has left it since, in time."""
        standing = self._standing(tenant)
        if standing is None or self._unix_s - standing.unix_s > standing.full_in_s:
            return 0, 0, 0, 0
        return standing.used

    def _spent(self, tenant: Tenant) -> list[int]:
        """Of the day and the month."""
        standing = self._standing(tenant)
        if standing is None:
            return [0, 0, 0, 0]
        return [spent if self._unix_s < standing.ends_s[index % 2] else 0 for index, spent in enumerate(standing.spent)]


Sort = Callable[[_Look, Tenant], Any]
SORTS: Final[Mapping[str, Sort]] = {
    "name": lambda _, tenant: tenant.name,
    "traffic": _Look.traffic,
    "service": _Look.service,
    "weight": lambda _, tenant: tenant.weight,
    "running": _Look.running,
    "queued": _Look.queued,
    "budget_left": _Look.budget_left,
    "cache_hit": _Look.cache_hit,
    "requests": _Look.requests,
    "refused": _Look.refused,
}
