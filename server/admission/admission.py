"""Whether a tenant may have a request run, by its limits and budgets.

Role: step 3 of a request, after its prompt is rendered and before anything else is done for it. `reserve` gives a ticket or
refuses; the ticket is settled when the request has ended, however.
Invariant: what is refused consumes nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from server.admission.limits import NO_BUDGET, Demand, Estimate, LimitStore, context_room, demand_of
from server.admission.rate_headers import rate_headers, remaining_ratio
from server.admission.refusals import budget_ran_out, refusal
from server.admission.ticket import Ticket
from server.clock import Clock
from server.context import RequestContext, Tenant
from server.errors import InsufficientQuotaError, RateLimitError
from server.models import Price, ServedModel

FIRST_EXPECTED_TOKENS: Final = 512
_MEMORY: Final = 8
"""Of that many answers, about, the running estimate is made."""
_FREE: Final = Price()
_AT_LEAST: Final = Estimate(num_input_tokens=1, max_output_tokens=1, has_cap=True)


class Admission:
    """Decides for all tenants."""

    def __init__(self, store: LimitStore, clock: Clock) -> None:
        self.store = store
        self._clock = clock
        self._expected: dict[str, int] = {}
        self._least: dict[str, tuple[Tenant, Price, Demand]] = {}

    def precheck(self, tenant: Tenant, model: ServedModel | None = None) -> None:
        """Raise what `reserve` would certainly raise, whatever the prompt; counts nothing.

        Without `model`, which has the prices, budgets in money are left out.
        """
        demand = self._least_of(tenant, model.price if model else _FREE)
        decision = self.store.peek(demand)
        if decision is not None and (error := refusal(demand, decision)) is not None:
            try:
                raise error
            finally:
                del error  # it has this frame

    def _least_of(self, tenant: Tenant, price: Price) -> Demand:
        """What any request asks for; the same for nearly all of a tenant's."""
        known = self._least.get(tenant.name)
        if known is None or known[0] is not tenant or known[1] is not price:
            known = self._least[tenant.name] = (tenant, price, demand_of(tenant, price, _AT_LEAST, 1))
        return known[2]

    async def reserve(self, context: RequestContext, model: ServedModel, estimate: Estimate) -> Ticket:
        """Reserve for one request, which must be settled.

        Raises `RateLimitError`, `InsufficientQuotaError`, `ExceedsLimitError`, `ContextLengthError`, `LimitsAwayError`.
        """
        tenant = context.tenant
        context_room(tenant, estimate.num_input_tokens)
        demand = demand_of(tenant, model.price, estimate, self.expected_tokens(tenant))
        decision = await self.store.reserve(demand)
        if decision.hold is None:
            raise refusal(demand, decision) or RateLimitError("your limits were reached; try again")
        # What a cap cut says nothing of answers without one.
        learn = None if estimate.has_cap else partial(self._learn, estimate.num_choices)
        return Ticket(demand, decision.hold, decision.standing, learn, self._ran_out)

    def headers(self, tenant: Tenant) -> dict[str, str]:
        """`x-ratelimit-*` as the tenant stands now, as far as it is known here; for refusals."""
        standing = self.store.standing(tenant)
        return {} if standing is None else rate_headers(tenant, standing)

    def budget_remaining_ratio(self, tenant: Tenant) -> float | None:
        """How much is left of the tenant's tightest budget, from 0 to 1; None where it has none."""
        if tenant.budget == NO_BUDGET:
            return None
        standing = self.store.standing(tenant)
        return 1.0 if standing is None else remaining_ratio(tenant, standing, self._clock.unix_s())

    def expected_tokens(self, tenant: Tenant) -> int:
        """How many output tokens one answer of the tenant's usually takes where the client sets no cap."""
        return self._expected.get(tenant.name, FIRST_EXPECTED_TOKENS * _MEMORY) // _MEMORY

    def _learn(self, num_choices: int, name: str, num_output_tokens: int) -> None:
        so_far = self._expected.get(name, FIRST_EXPECTED_TOKENS * _MEMORY)
        self._expected[name] = so_far - so_far // _MEMORY + num_output_tokens // num_choices

    def _ran_out(self, demand: Demand, num_output_tokens: int) -> InsufficientQuotaError:
        standing = self.store.standing(demand.tenant)
        if standing is None:
            return InsufficientQuotaError(f"your budget ran out after {num_output_tokens} tokens of this answer")
        return budget_ran_out(demand, standing, num_output_tokens)
