"""What an admitted request holds of its tenant's limits while it runs.

Invariant: settled once, on every ending; from then on nothing is reserved for it. A budget is overrun by one engine delta of each
running answer at most: an answer goes on only as far as it has been granted, and asks for more in time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from server.admission.limits import OUTPUT, Demand, Hold, Standing, Usage
from server.admission.rate_headers import rate_headers
from server.errors import InsufficientQuotaError

_UNBOUNDED: Final = sys.maxsize


class Ticket:
    """Of one request. `learn` is told how many output tokens it took; `ran_out` makes the error that ends it."""

    __slots__ = (
        "_demand", "_go_on_until", "_hold", "_is_bounded", "_is_charged", "_is_refused", "_is_settled", "_is_short", "_learn",
        "_ran_out", "_standing",
    )  # fmt: skip

    def __init__(
        self,
        demand: Demand,
        hold: Hold,
        standing: Standing,
        learn: Callable[[str, int], None] | None,
        ran_out: Callable[[Demand, int], InsufficientQuotaError],
    ) -> None:
        self._demand = demand
        self._hold = hold
        self._standing = standing
        self._learn = learn
        self._ran_out = ran_out
        self._is_bounded = demand.has_budget
        self._is_charged = demand.minute_limits[OUTPUT] is not None
        self._is_short = self._is_bounded and hold.granted < demand.num_output_tokens
        self._is_refused = self._is_settled = False
        self._go_on()

    @property
    def headers(self) -> dict[str, str]:
        """`x-ratelimit-*`, as the tenant stood when this request had been admitted."""
        return rate_headers(self._demand.tenant, self._standing)

    def prefilled(self, num_cached_tokens: int) -> None:
        """With the first delta: gives back what was reserved for input that was cached."""
        self._hold.prefilled(num_cached_tokens)

    def produced(self, num_output_tokens: int) -> None:
        """So many tokens in all so far, over all choices. Raises `InsufficientQuotaError` when the budget is spent."""
        if num_output_tokens > self._go_on_until:
            self._reserve_more(num_output_tokens)

    def settle(self, usage: Usage) -> None:
        """The request has ended: what was used replaces what was reserved, once. Never raises, never waits."""
        if self._is_settled:
            return
        self._is_settled = True
        self._go_on_until = _UNBOUNDED
        self._hold.settle(usage)
        if self._learn is not None and usage.num_output_tokens > 0:
            self._learn(self._demand.tenant.name, usage.num_output_tokens)

    def _reserve_more(self, num_so_far: int) -> None:
        hold, demand = self._hold, self._demand
        if self._is_short and hold.lead_tokens and num_so_far > hold.granted:
            raise self._ran_out(demand, num_so_far)
        self._go_on_until = _UNBOUNDED  # while the answer is awaited, which takes a moment at most
        enough = num_so_far + hold.lead_tokens + demand.step_tokens
        if num_so_far < demand.max_output_tokens:  # nothing is asked for that can't come
            enough = min(enough, demand.max_output_tokens)
        grant_to = enough if self._is_bounded and not self._is_refused else 0
        before = hold.granted
        hold.extend(enough if self._is_charged else 0, grant_to, lambda: self._answered(before, grant_to))
        if num_so_far > self._go_on_until and self._is_short and num_so_far > hold.granted:
            raise self._ran_out(demand, num_so_far)

    def _answered(self, before: int, grant_to: int) -> None:
        if self._is_settled:
            return
        granted = self._hold.granted
        if grant_to:
            self._is_short = granted < grant_to
            self._is_refused = self._is_short and granted == before and self._hold.lead_tokens > 0
        self._go_on()

    def _go_on(self) -> None:
        """How far it may go on before more has to be reserved: a while before what is reserved is used up."""
        hold, until = self._hold, _UNBOUNDED
        if self._is_bounded:
            until = hold.granted if self._is_refused else self._soon(hold.granted)
        if self._is_charged:
            until = min(until, self._soon(hold.charged))
        self._go_on_until = until

    def _soon(self, num_reserved: int) -> int:
        if num_reserved == self._demand.max_output_tokens:
            return num_reserved
        return num_reserved - min(self._hold.lead_tokens, num_reserved // 2)
