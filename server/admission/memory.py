"""Limits counted in this process.

Invariant: every decision is one synchronous step, so nothing comes between its checks and its counts. A hold keeps the windows
it was counted in, and corrects these, whatever has begun since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from server.admission.calendar import day_end_s, day_of, month_end_s, month_of
from server.admission.limits import INPUT, OUTPUT, REQUESTS, UNCACHED, Decision, Demand, Four, Standing, Usage, affordable
from server.admission.minute_window import MinuteWindow, Slot
from server.clock import Clock
from server.context import Tenant

_SWEEP_ABOVE: Final = 64
_NO_WAITS: Final = (0.0, 0.0, 0.0, 0.0)


class Spent:
    """What was spent, or is reserved, in one calendar window."""

    __slots__ = ("nano_usd", "number", "tokens")

    def __init__(self, number: int) -> None:
        self.number = number
        self.tokens = 0
        self.nano_usd = 0


class _Windows:
    """The windows of one length. The one before is kept: a calendar that was set wrong, and right again, loses nothing."""

    __slots__ = ("_before", "current")

    def __init__(self, number: int) -> None:
        self.current = Spent(number)
        self._before: Spent | None = None

    def at(self, number: int) -> Spent:
        """The window of this number, as the current one."""
        if self.current.number != number:
            before, self._before = self._before, self.current
            self.current = before if before is not None and before.number == number else Spent(number)
        return self.current


class TenantCounts:
    """All counts of one tenant."""

    __slots__ = ("days", "minute", "months", "num_running")

    def __init__(self, day: int, month: int) -> None:
        self.minute = MinuteWindow()
        self.num_running = 0
        self.days = _Windows(day)
        self.months = _Windows(month)


class MemoryStore:
    """Counts of all tenants. Minutes go by the monotonic clock, budgets by the calendar."""

    is_away: Final = False
    num_away: Final = 0

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._counts: dict[str, TenantCounts] = {}
        self._sweep_above = _SWEEP_ABOVE
        self._day = -1
        self._month = -1
        self._month_end = (-1, 0)

    async def reserve(self, demand: Demand) -> Decision:
        """As `LimitStore` asks."""
        return self.decide(demand)

    def decide(self, demand: Demand, num_elsewhere: int = 0) -> Decision:
        """As `reserve`. `num_elsewhere`: requests of the tenant that run and are not counted here."""
        return self._decide(demand, num_elsewhere, counts_it=True)

    def peek(self, demand: Demand) -> Decision | None:
        """As `LimitStore` asks."""
        return self._decide(demand, 0, counts_it=False)

    def standing(self, tenant: Tenant) -> Standing:
        """How the tenant stands now."""
        now_s, unix_s = self.clock.monotonic_s(), self.clock.unix_s()
        counts = self.counts(tenant.name, unix_s)
        counts.minute.roll(now_s)
        return self._standing(counts, now_s, unix_s)

    def seed(self, spent: Mapping[str, Four]) -> None:
        """Add what the ledger says was spent: tenant -> tokens of the day, nano-USD of the day, the same of the month. Once."""
        for name, (day_tokens, day_nano_usd, month_tokens, month_nano_usd) in spent.items():
            counts = self.counts(name, self.clock.unix_s())
            day, month = counts.days.current, counts.months.current
            day.tokens += day_tokens
            day.nano_usd += day_nano_usd
            month.tokens += month_tokens
            month.nano_usd += month_nano_usd

    def knows(self, name: str) -> bool:
        """Whether anything was ever counted for this tenant."""
        return name in self._counts

    def num_running(self, name: str) -> int:
        """How many requests of this tenant run by what is counted here."""
        counts = self._counts.get(name)
        return 0 if counts is None else counts.num_running

    def counts(self, name: str, unix_s: int) -> TenantCounts:
        """The counts of a tenant, their calendar windows turned to `unix_s`."""
        day = day_of(unix_s)
        if day != self._day:
            self._day, self._month = day, month_of(day)
        counts = self._counts.get(name)
        if counts is None:
            if len(self._counts) > self._sweep_above:
                self._sweep()
            counts = self._counts[name] = TenantCounts(day, self._month)
        else:
            counts.days.at(day)
            counts.months.at(self._month)
        return counts

    def _decide(self, demand: Demand, num_elsewhere: int, *, counts_it: bool) -> Decision:
        clock = self.clock
        now_s, unix_s = clock.monotonic_s(), clock.unix_s()
        counts = self.counts(demand.tenant.name, unix_s)
        minute = counts.minute
        minute.roll(now_s)
        waits, totals = _NO_WAITS, minute.totals
        for kind, limit in enumerate(demand.minute_limits):
            if limit is not None and (excess := totals[kind] + demand.amounts[kind] - limit) > 0:
                so_far = list(waits)
                so_far[kind] = minute.wait_s(kind, excess, now_s)
                waits = (so_far[0], so_far[1], so_far[2], so_far[3])
        most = demand.tenant.limits.concurrent_requests
        is_busy = most is not None and counts.num_running + num_elsewhere >= most
        granted = demand.affordable(_spent(counts)) if demand.has_budget else demand.num_output_tokens
        hold = None
        if counts_it and waits is _NO_WAITS and granted >= 1 and not is_busy:
            hold = MemoryHold(clock, counts, demand, minute.now(now_s), granted)
        return Decision(hold, self._standing(counts, now_s, unix_s, num_elsewhere), waits, granted)

    def _standing(self, counts: TenantCounts, now_s: float, unix_s: int, num_elsewhere: int = 0) -> Standing:
        used = counts.minute.totals
        return Standing(
            used=(used[0], used[1], used[2], used[3]),
            full_in_s=counts.minute.full_in_s(now_s),
            num_running=counts.num_running + num_elsewhere,
            spent=_spent(counts),
            ends_s=(day_end_s(counts.days.current.number), self._month_end_s(counts.months.current.number)),
            unix_s=unix_s,
        )

    def _month_end_s(self, month: int) -> int:
        """As `month_end_s`, which nearly always is asked for the same month."""
        if month != self._month_end[0]:
            self._month_end = (month, month_end_s(month))
        return self._month_end[1]

    def _sweep(self) -> None:
        """Forget tenants of which nothing counts any more, so that those that were deleted don't stay for ever."""
        now_s = self.clock.monotonic_s()
        for name, counts in list(self._counts.items()):
            counts.minute.roll(now_s)
            is_over = counts.months.current.number != self._month and abs(counts.days.current.number - self._day) > 1
            if is_over and not counts.num_running and counts.minute.is_empty:
                del self._counts[name]
        self._sweep_above = max(_SWEEP_ABOVE, 2 * len(self._counts))


def _spent(counts: TenantCounts) -> Four:
    day, month = counts.days.current, counts.months.current
    return day.tokens, month.tokens, day.nano_usd, month.nano_usd


class MemoryHold:
    """What one request holds of its tenant's counts."""

    __slots__ = (
        "_clock", "_counts", "_day", "_demand", "_input_nano_usd", "_input_tokens", "_is_settled", "_last_charge", "_month",
        "_slot", "_slot_of_last", "_uncached_tokens", "charged", "granted", "lead_tokens",
    )  # fmt: skip

    def __init__(self, clock: Clock, counts: TenantCounts, demand: Demand, slot: Slot, granted: int) -> None:
        self._clock = clock
        self._counts = counts
        self._demand = demand
        self._slot = slot
        self._day = counts.days.current
        self._month = counts.months.current
        self._input_tokens = demand.num_input_tokens
        self._uncached_tokens = demand.amounts[UNCACHED]
        self._input_nano_usd = demand.input_nano_usd
        self.granted = granted
        self.charged = demand.amounts[OUTPUT]
        self.lead_tokens = 0
        self._slot_of_last = slot
        self._last_charge = 0
        self._is_settled = False
        counts.minute.enter(slot, demand.amounts)
        counts.num_running += 1
        self._spend(self._input_tokens + granted, self._input_nano_usd + demand.output_nano_usd(granted))

    def prefilled(self, num_cached_tokens: int) -> None:
        """As `Hold` asks."""
        if self._is_settled:
            return
        demand = self._demand
        num_uncached = self._input_tokens - num_cached_tokens
        self._counts.minute.add(self._slot, UNCACHED, num_uncached - self._uncached_tokens)
        self._uncached_tokens = num_uncached
        nano_usd = demand.price.nano_usd(self._input_tokens, num_cached_tokens, 0)
        self._spend(0, nano_usd - self._input_nano_usd)
        self._input_nano_usd = nano_usd

    def extend(self, charge_to: int, grant_to: int, then: Callable[[], None]) -> None:
        """As `Hold` asks."""
        if self._is_settled:
            return
        if (more := charge_to - self.charged) > 0:
            self._slot_of_last, self._last_charge = self._slot_now(), more
            self._counts.minute.add(self._slot_of_last, OUTPUT, more)
            self.charged = charge_to
        if (more := grant_to - self.granted) > 0:
            demand, day, month = self._demand, self._day, self._month
            spent = (day.tokens, month.tokens, day.nano_usd, month.nano_usd)
            more = affordable(demand.tenant.budget, demand.price, spent, 0, 0, more, demand.is_priced)
            if more > 0:
                grant_to = self.granted + more
                self._spend(more, demand.output_nano_usd(grant_to) - demand.output_nano_usd(self.granted))
                self.granted = grant_to
        then()

    def settle(self, usage: Usage) -> None:
        """As `Hold` asks. A request that never reached the engine is not counted as one, either."""
        if self._is_settled:
            return
        self._is_settled = True
        demand, minute, slot = self._demand, self._counts.minute, self._slot
        self._counts.num_running -= 1
        if usage.num_input_tokens == 0:
            minute.add(slot, REQUESTS, -1)
        minute.add(slot, INPUT, usage.num_input_tokens - self._input_tokens)
        minute.add(slot, UNCACHED, usage.num_input_tokens - usage.num_cached_tokens - self._uncached_tokens)
        unused = self.charged - usage.num_output_tokens
        if unused < 0:
            minute.add(self._slot_now(), OUTPUT, -unused)
        else:
            of_last = min(unused, self._last_charge)
            minute.add(self._slot_of_last, OUTPUT, -of_last)
            minute.add(slot, OUTPUT, of_last - unused)
        self._spend(
            usage.num_input_tokens + usage.num_output_tokens - self._input_tokens - self.granted,
            usage.cost_nano_usd - self._input_nano_usd - demand.output_nano_usd(self.granted),
        )

    def _slot_now(self) -> Slot:
        now_s = self._clock.monotonic_s()
        self._counts.minute.roll(now_s)
        return self._counts.minute.now(now_s)

    def _spend(self, tokens: int, nano_usd: int) -> None:
        self._day.tokens += tokens
        self._day.nano_usd += nano_usd
        self._month.tokens += tokens
        self._month.nano_usd += nano_usd
