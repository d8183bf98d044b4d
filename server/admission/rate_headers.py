"""The headers that tell a client how much of its limits is left.

Role: how a `Standing` is told. `requests` are those per minute. `tokens` is the one limit on tokens, per minute or of a budget,
of which the least part is left. What is unlimited has no headers.
Source: OpenAI's `x-ratelimit-*`, where `reset` is the time until all of the limit is free again, as in `1s` or `6m0s`.
"""

from __future__ import annotations

from math import ceil

from server.admission.limits import INPUT, OUTPUT, REQUESTS, UNCACHED, Standing, budget_limits
from server.context import Tenant


def rate_headers(tenant: Tenant, standing: Standing) -> dict[str, str]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`."""
    limits = tenant.limits
    headers: dict[str, str] = {}
    if (limit := limits.requests_per_minute) is not None:
        used = standing.used[REQUESTS]
        _tell(headers, "requests", limit, used, standing.full_in_s if used else 0)
    tightest: tuple[float, int, int, float] | None = None
    for kind, limit in (
        (INPUT, limits.input_tokens_per_minute),
        (UNCACHED, limits.uncached_input_tokens_per_minute),
        (OUTPUT, limits.output_tokens_per_minute),
    ):
        if limit is not None:
            used = standing.used[kind]
            found = ((limit - used) / limit, limit, used, standing.full_in_s if used else 0.0)
            tightest = found if tightest is None else min(tightest, found)
    budget = tenant.budget
    if budget.tokens_per_day is not None or budget.tokens_per_month is not None:
        for index, limit in enumerate(budget_limits(budget)[:2]):
            if limit is not None:
                used = standing.spent[index]
                found = ((limit - used) / limit, limit, used, standing.ends_s[index] - standing.unix_s if used else 0.0)
                tightest = found if tightest is None else min(tightest, found)
    if tightest is not None:
        _tell(headers, "tokens", *tightest[1:])
    return headers


def _tell(headers: dict[str, str], what: str, limit: int, used: int, reset_s: float) -> None:
    headers[f"x-ratelimit-limit-{what}"] = str(limit)
    headers[f"x-ratelimit-remaining-{what}"] = str(max(0, limit - used))
    headers[f"x-ratelimit-reset-{what}"] = duration(ceil(reset_s))


def duration(seconds: int) -> str:
    """`59s`, `1m0s`, `2h0m5s`."""
    minutes, s = divmod(max(seconds, 0), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}h{m}m{s}s" if hours else f"{m}m{s}s" if m else f"{s}s"


def remaining_ratio(tenant: Tenant, standing: Standing, unix_s: int) -> float | None:
    """How much is left of the budget that has least left, from 0 to 1; None for a tenant without one."""
    least: float | None = None
    for index, limit in enumerate(budget_limits(tenant.budget)):
        if limit is not None:
            spent = standing.spent[index] if unix_s < standing.ends_s[index % 2] else 0
            left = max(0.0, (limit - spent) / limit) if limit else 0.0
            least = left if least is None else min(least, left)
    return least
