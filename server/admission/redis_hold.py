"""What one request holds of limits that are counted in Redis.

Invariant: never waits and never fails: it writes down what has to be told, and the store tells it. While Redis is away a hold
lives on what this process counts, and settles with Redis when that is back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from server.admission.calendar import day_end_s, month_end_s
from server.admission.limits import OUTPUT, UNCACHED, Decision, Demand, Hold, Standing, Usage, budget_limits
from server.admission.redis_outbox import Outbox, Question

MAX_LEAD_TOKENS: Final = 128
"""More than any answer grows while Redis is asked."""


class Teller(Protocol):
    """What holds tell their store."""

    is_away: bool

    def wake(self, box: Outbox) -> None: ...
    def wake_soon(self, box: Outbox) -> None: ...


def limit_numbers(limits: tuple[int | None, ...]) -> list[int]:
    """Limits as the script takes them."""
    return [-1 if limit is None else limit for limit in limits]


def reserve_operation(hold_id: str, demand: Demand) -> list[object]:
    """What the script is asked for `demand`."""
    most = demand.tenant.limits.concurrent_requests
    return [
        "reserve", hold_id, *demand.amounts[1:], demand.num_output_tokens, demand.input_nano_usd, demand.price.output,
        demand.is_priced, limit_numbers(demand.minute_limits), -1 if most is None else most,
        limit_numbers(budget_limits(demand.tenant.budget)),
    ]  # fmt: skip


def read_answer(numbers: list[int]) -> tuple[Decision, tuple[int, int, int] | None]:
    """The script's decision, without a hold, and (granted, day, month) for one; None where the request is refused."""
    fits, granted, now_s, day, month, running, full_ms, r, i, u, o, *rest = numbers
    standing = Standing(
        used=(r, i, u, o),
        full_in_s=full_ms / 1000,
        num_running=running,
        spent=(rest[0], rest[1], rest[2], rest[3]),
        ends_s=(day_end_s(day), month_end_s(month)),
        unix_s=now_s,
    )
    waits_s = (rest[4] / 1000, rest[5] / 1000, rest[6] / 1000, rest[7] / 1000)
    return Decision(None, standing, waits_s, granted), (granted, day, month) if fits else None


class RedisHold:
    """As `Hold` asks. `here`: what this process counts of it, where Redis did not admit it. `windows`: day and month."""

    __slots__ = ("_box", "_demand", "_here", "_id", "_is_settled", "_teller", "_windows", "charged", "granted", "lead_tokens")

    def __init__(
        self, teller: Teller, box: Outbox, hold_id: str, demand: Demand, decision: tuple[int, int, int], here: Hold | None = None
    ) -> None:
        self._teller = teller
        self._box = box
        self._id = hold_id
        self._demand = demand
        self.granted, *windows = decision
        self._windows = windows[0], windows[1]
        self._here = here
        self._is_settled = False
        self.charged = demand.amounts[OUTPUT]
        self.lead_tokens = min(MAX_LEAD_TOKENS, demand.step_tokens)

    def prefilled(self, num_cached_tokens: int) -> None:
        """As `Hold` asks."""
        if self._is_settled:
            return
        demand = self._demand
        if self._here is not None:
            self._here.prefilled(num_cached_tokens)
        elif num_cached_tokens or demand.amounts[UNCACHED] != demand.num_input_tokens:
            nano_usd = demand.price.nano_usd(demand.num_input_tokens, num_cached_tokens, 0)
            self._ask(Question(["prefilled", self._id, num_cached_tokens, nano_usd], _ignore, _nothing))
            self._teller.wake_soon(self._box)

    def extend(self, charge_to: int, grant_to: int, then: Callable[[], None]) -> None:
        """As `Hold` asks."""
        if self._is_settled:
            return
        if (here := self._here) is not None:
            here.extend(charge_to, grant_to, _nothing)
            self.charged, self.granted = here.charged, here.granted
            then()
            return
        charge, grant = max(0, charge_to - self.charged), max(0, grant_to - self.granted)
        demand = self._demand
        budgets = limit_numbers(budget_limits(demand.tenant.budget))

        def answered(numbers: list[int]) -> None:
            self.charged += charge
            self.granted += numbers[0]
            self._learn(numbers[1:])
            then()

        def lost() -> None:  # a running answer does not end because Redis is away; what it takes is charged in the end
            answered([grant])

        if self._teller.is_away:
            lost()
            return
        operation = ["extend", self._id, charge, grant, demand.price.output, demand.is_priced, budgets]
        self._ask(Question(operation, answered, lost))
        self._teller.wake(self._box)

    def settle(self, usage: Usage) -> None:
        """As `Hold` asks."""
        if self._is_settled:
            return
        self._is_settled = True
        if self._here is not None:
            self._here.settle(usage)
        self._box.settle(self._id, usage, *self._windows)
        self._teller.wake_soon(self._box)

    def _learn(self, spent: list[int]) -> None:
        standing, (day, month) = self._box.standing, self._windows
        if spent and standing is not None and standing.ends_s == (day_end_s(day), month_end_s(month)):
            standing.spent = (spent[0], spent[1], spent[2], spent[3])

    def _ask(self, question: Question) -> None:
        self._box.questions.append(question)


def _ignore(numbers: list[int]) -> None:
    """The answer says nothing."""


def _nothing() -> None:
    """Nothing follows."""
