"""Why a request is refused, and when it would not be.

Invariant: `retry_after_s` is right: when so much time has passed and nothing else came, the same request is admitted. Of
several reasons the one that lasts longest is told. Only for requests that run at once the end is not known.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from server.admission.limits import KINDS, Decision, Demand, Standing, budget_limits
from server.errors import InsufficientQuotaError, RateLimitError
from server.models import usd

_NAMES: Final = ("requests", "input tokens", "uncached input tokens", "output tokens")


def refusal(demand: Demand, decision: Decision) -> RateLimitError | None:
    """The error for a refused request; None where nothing speaks against it."""
    error: RateLimitError | None = _over_budget(demand, decision) if decision.affordable < 1 else None
    longest = error.retry_after_s if error is not None and error.retry_after_s is not None else 0
    for kind, wait_s in enumerate(decision.waits_s):
        if wait_s > longest:
            error, longest = _over_minute(demand, decision, kind), ceil(wait_s)
    if error is None:
        most, running = demand.tenant.limits.concurrent_requests, decision.standing.num_running
        if most is not None and running >= most:
            error = RateLimitError(
                f"`{most}` of your requests may run at once, and {running} do; wait for one to end", reason="concurrent_requests"
            )
    return error


def _over_minute(demand: Demand, decision: Decision, kind: int) -> RateLimitError:
    name, retry_after_s = _NAMES[kind], max(1, ceil(decision.waits_s[kind]))
    needs = "" if kind == 0 else f", this request needs {demand.amounts[kind]}"
    used = decision.standing.used[kind]
    return RateLimitError(
        f"your limit is `{demand.minute_limits[kind]}` {name} per minute: {used} are used or reserved{needs}; "
        f"try again in {retry_after_s} s",
        reason=KINDS[kind],
        retry_after_s=retry_after_s,
    )


def _over_budget(demand: Demand, decision: Decision) -> InsufficientQuotaError:
    nano_usd = demand.input_nano_usd + demand.output_nano_usd(1)
    least = (demand.num_input_tokens + 1, nano_usd)
    return _spent(
        demand,
        decision.standing,
        least,
        "your budget is `{}` {} per {}: {} are spent or reserved, this request needs {} at least",
    )


def budget_ran_out(demand: Demand, standing: Standing, num_output_tokens: int) -> InsufficientQuotaError:
    """The error that ends an answer in the middle, after `num_output_tokens`."""
    least = (1, demand.output_nano_usd(1))
    what = f"your budget ran out after {num_output_tokens} tokens of this answer, which are charged: it is `{{}}` {{}} per {{}}"
    return _spent(demand, standing, least, what)


def _spent(demand: Demand, standing: Standing, least: tuple[int, int], what: str) -> InsufficientQuotaError:
    """Of the windows that have no room for `least` (tokens, nano-USD), the one that ends last."""
    budget = demand.tenant.budget
    last: tuple[int, str, str] | None = None
    for index, limit in enumerate(budget_limits(budget)):
        is_money, window = index >= 2, ("day", "month")[index % 2]
        spent, needed = standing.spent[index], least[is_money]
        if limit is None or spent + needed <= limit or (is_money and not demand.is_priced):
            continue
        retry_after_s = max(1, standing.ends_s[index % 2] - standing.unix_s)
        if last is None or retry_after_s > last[0]:
            unit = "USD" if is_money else "tokens"
            amounts = [usd(amount) if is_money else amount for amount in (limit, spent, needed)]
            text = what.format(amounts[0], unit, window, *amounts[1:])
            last = (retry_after_s, f"{unit.lower()}_per_{window}", f"{text}; the next {window} begins in {retry_after_s} s")
    if last is None:  # given back meanwhile
        return InsufficientQuotaError("your budget was all reserved; try again", retry_after_s=1)
    return InsufficientQuotaError(last[2], reason=last[1], retry_after_s=last[0])
