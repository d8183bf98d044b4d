"""What one request asks of its tenant's limits, and what a store answers.

Role: the policy, apart from where counts are kept (`memory.py`, `redis_store.py`) and how they are told (`refusals.py`,
`rate_headers.py`).
Invariant: pure; both stores ask the same `Demand` and give the same `Decision`.

Limits per minute hold for every 60 seconds, wherever they begin. Budgets hold for the calendar day and month (UTC) that a request
is admitted in: all that it ever costs is charged to these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from server.context import Budget, Tenant
from server.errors import ContextLengthError, ExceedsLimitError
from server.models import Price, usd

KINDS: Final = ("requests", "input_tokens", "uncached_input_tokens", "output_tokens")
"""What is counted per minute, in the order of every tuple of four."""
REQUESTS, INPUT, UNCACHED, OUTPUT = range(4)
WINDOW_S: Final = 60
FEMTO_PER_NANO: Final = 10**6
MAX_STEP_TOKENS: Final = 256
MIN_STEP_TOKENS: Final = 16
MIN_EXPECTED_TOKENS: Final = 64
"""So many are reserved where the client sets no cap, at least: it leaves time to ask for more."""

Four = tuple[int, int, int, int]
FourLimits = tuple[int | None, int | None, int | None, int | None]


@dataclass(slots=True, frozen=True)
class Estimate:
    """What is known of a request before its work.

    `max_output_tokens`: what the context and the client's cap allow at most, all choices together. `has_cap`: the client set one,
    and it is reserved; else what so many answers (`num_choices`) of the tenant usually take.
    """

    num_input_tokens: int
    max_output_tokens: int
    has_cap: bool
    num_choices: int = 1


@dataclass(slots=True, frozen=True)
class Usage:
    """What a request took by the engine's own counts; zeros where the engine was never asked."""

    num_input_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    cost_nano_usd: int = 0


NOTHING: Final = Usage()


@dataclass(slots=True)
class Standing:
    """How much of its limits a tenant uses.

    `used` and `full_in_s` (when the last of it leaves the window): of the minute, by kind. `spent`: tokens of the day and the
    month, nano-USD of the day and the month, with what running requests have reserved. `ends_s`: when that day and month end;
    `unix_s`: when this was.
    """

    used: Four
    full_in_s: float
    num_running: int
    spent: Four
    ends_s: tuple[int, int]
    unix_s: int


class Hold(Protocol):
    """What a store keeps for one admitted request, until `settle`.

    `granted`: output tokens that the budgets have room for; `charged`: those counted in the minute. `lead_tokens`: so long before
    more is needed it has to be asked for; 0 where `extend` has its answer when it returns.
    """

    granted: int
    charged: int
    lead_tokens: int

    def prefilled(self, num_cached_tokens: int) -> None:
        """So much of the prompt was in the prefix cache; the rest of the reservation for it is given back."""
        ...

    def extend(self, charge_to: int, grant_to: int, then: Callable[[], None]) -> None:
        """Count output up to `charge_to` in the minute, whatever its limit, and grant up to `grant_to`, or what budgets afford.

        Calls `then` when that is done: at once, or later.
        """
        ...

    def settle(self, usage: Usage) -> None:
        """Replace all that was reserved by what was used, once; later calls do nothing. Never raises, never waits."""
        ...


@dataclass(slots=True)
class Decision:
    """What a store decided. `hold` is None where the request is refused; then nothing was counted.

    `waits_s`: until the minute has room for the request, by kind; 0 where it has. `affordable`: output tokens that budgets
    have room for beside the prompt.
    """

    hold: Hold | None
    standing: Standing
    waits_s: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    affordable: int = 0


class LimitStore(Protocol):
    """Where limits are counted."""

    async def reserve(self, demand: Demand) -> Decision:
        """Check everything and count everything, or nothing: one atomic step. Raises `LimitsAwayError`."""
        ...

    def peek(self, demand: Demand) -> Decision | None:
        """What `reserve` would say now, counting nothing; None where that can't be known without asking elsewhere."""
        ...

    def standing(self, tenant: Tenant) -> Standing | None:
        """How the tenant stands, as far as this process knows."""
        ...

    def seed(self, spent: Mapping[str, Four]) -> None:
        """What the ledger says was spent: tenant -> tokens of the day, nano-USD of the day, the same of the month. Once."""
        ...


@dataclass(slots=True)
class Demand:
    """What one request asks for.

    `amounts`: of the minute. `num_output_tokens`: what budgets are asked to grant; `max_output_tokens`: what the answer can take.
    `input_nano_usd`: what the prompt costs where nothing of it is cached. `step_tokens`: by how much a reservation grows.
    """

    tenant: Tenant
    price: Price
    num_input_tokens: int
    num_output_tokens: int
    max_output_tokens: int
    amounts: Four
    minute_limits: FourLimits
    input_nano_usd: int
    is_priced: bool
    has_budget: bool
    step_tokens: int

    def affordable(self, spent: Four) -> int:
        """How many output tokens the budgets have room for beside the prompt; below 1: none."""
        return affordable(
            self.tenant.budget,
            self.price,
            spent,
            self.num_input_tokens,
            self.input_nano_usd,
            self.num_output_tokens,
            self.is_priced,
        )

    def output_nano_usd(self, num_output_tokens: int) -> int:
        """What so many output tokens cost, rounded up."""
        return -(-num_output_tokens * self.price.output // FEMTO_PER_NANO)


def affordable(
    budget: Budget, price: Price, spent: Four, num_input_tokens: int, input_nano_usd: int, num_wanted: int, is_priced: bool
) -> int:
    """Of `num_wanted` output tokens, those that all windows of `budget` have room for beside the input."""
    num = num_wanted
    if (limit := budget.tokens_per_day) is not None:
        num = min(num, limit - spent[0] - num_input_tokens)
    if (limit := budget.tokens_per_month) is not None:
        num = min(num, limit - spent[1] - num_input_tokens)
    if is_priced:
        if (limit := budget.nano_usd_per_day) is not None:
            num = min(num, _tokens_for(limit - spent[2] - input_nano_usd, price, num))
        if (limit := budget.nano_usd_per_month) is not None:
            num = min(num, _tokens_for(limit - spent[3] - input_nano_usd, price, num))
    return num


def budget_limits(budget: Budget) -> FourLimits:
    """The limits of a budget, in the order of `Standing.spent`."""
    return budget.tokens_per_day, budget.tokens_per_month, budget.nano_usd_per_day, budget.nano_usd_per_month


def _tokens_for(nano_usd: int, price: Price, num_wanted: int) -> int:
    if nano_usd < 0:
        return 0
    return nano_usd * FEMTO_PER_NANO // price.output if price.output else num_wanted


def context_room(tenant: Tenant, num_input_tokens: int) -> int | None:
    """How many tokens the tenant's `max_context_tokens` leaves for an answer; None: no limit. Raises `ContextLengthError`."""
    most = tenant.limits.max_context_tokens
    if most is None:
        return None
    if num_input_tokens >= most:
        raise ContextLengthError(
            f"the prompt has {num_input_tokens} tokens, prompt and answer of your requests may have {most} together; the answer "
            "needs one at least; shorten the conversation",
            param="messages",
        )
    return most - num_input_tokens


def demand_of(tenant: Tenant, price: Price, estimate: Estimate, expected_tokens: int) -> Demand:
    """What a request asks for. `expected_tokens`: what one answer of the tenant's usually takes.

    Raises `InvalidRequestError` for a prompt that no minute and no budget of the tenant ever has room for.
    """
    limits, budget = tenant.limits, tenant.budget
    num_input, num_most = estimate.num_input_tokens, max(estimate.max_output_tokens, 1)
    num_output = num_most if estimate.has_cap else min(num_most, max(expected_tokens, MIN_EXPECTED_TOKENS) * estimate.num_choices)
    if (limit := limits.input_tokens_per_minute) is not None and num_input > limit:
        raise _too_large(f"the prompt has {num_input} tokens", f"you may send {limit} input tokens per minute")
    num_uncached = num_input if (limit := limits.uncached_input_tokens_per_minute) is None else min(num_input, limit)
    step, charged = MAX_STEP_TOKENS, num_output
    if (limit := limits.output_tokens_per_minute) is not None:
        charged = min(num_output, limit)
        step = min(step, max(limit // 32, MIN_STEP_TOKENS))
    is_priced = bool(price.input or price.cached_input or price.output)
    input_nano = -(-num_input * max(price.input, price.cached_input) // FEMTO_PER_NANO)
    demand = Demand(
        tenant=tenant,
        price=price,
        num_input_tokens=num_input,
        num_output_tokens=num_output,
        max_output_tokens=num_most,
        amounts=(1, num_input, num_uncached, charged),
        minute_limits=(
            limits.requests_per_minute,
            limits.input_tokens_per_minute,
            limits.uncached_input_tokens_per_minute,
            limits.output_tokens_per_minute,
        ),
        input_nano_usd=input_nano,
        is_priced=is_priced,
        has_budget=budget != NO_BUDGET,
        step_tokens=step,
    )
    if demand.has_budget and demand.affordable((0, 0, 0, 0)) < 1:
        _check_ever(demand)
    return demand


NO_BUDGET: Final = Budget()


def _check_ever(demand: Demand) -> None:
    """Raise for a request that a whole budget does not pay for; a budget of 0 is one that is spent."""
    budget, num_input = demand.tenant.budget, demand.num_input_tokens
    for limit, window in ((budget.tokens_per_day, "day"), (budget.tokens_per_month, "month")):
        if limit is not None and num_input + 1 > limit:
            raise _too_large(
                f"the prompt has {num_input} tokens", f"you may use {limit} tokens per {window}, the answer's among them"
            )
    least = demand.input_nano_usd + demand.output_nano_usd(1)
    for limit, window in ((budget.nano_usd_per_day, "day"), (budget.nano_usd_per_month, "month")):
        if limit and demand.is_priced and least > limit:
            raise _too_large(
                f"a prompt of {num_input} tokens and one token of an answer cost up to {usd(least)} USD",
                f"you may spend {usd(limit)} USD per {window}",
            )


def _too_large(what: str, limit: str) -> ExceedsLimitError:
    return ExceedsLimitError(f"{what}; {limit}: shorten the conversation, or have the limit raised", param="messages")
