"""Limits that several replicas share, counted in Redis.

Invariant: a decision is one atomic script call by the server's clock, and is made within `deadline_s`, or here: while Redis
does not answer, `away="open"` decides by what this process counts, from what Redis last said of the tenant, and `closed`
refuses. Whatever ends, in whatever state Redis is, is charged once when it is back. A replica that is gone leaves leases that
run out.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import Literal

from server.admission.calendar import day_end_s, day_of, month_end_s, month_of
from server.admission.limits import Decision, Demand, Four, Standing
from server.admission.memory import MemoryStore
from server.admission.patience import Patience
from server.admission.redis_hold import RedisHold, read_answer, reserve_operation
from server.admission.redis_link import RedisLink
from server.admission.redis_outbox import Outbox, Question
from server.admission.redis_seeds import LedgerTotals, Seeds
from server.admission.redis_teller import RedisTeller
from server.clock import Clock
from server.context import Tenant
from server.errors import LimitsAwayError


class _Away(Exception):
    """Redis did not answer."""


class RedisStore:
    """`LimitStore` over the Redis at `url`. `run` must be running.

    A replica renews its leases every `renew_s`, and one that does
    not for `lease_s` has lost them. While away, Redis is tried every `retry_s`. `ledger_totals` gives what `seed` takes, for a
    Redis that has lost its data.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        away: Literal["open", "closed"] = "open",
        ledger_totals: LedgerTotals | None = None,
        namespace: str = "k3gw",
        deadline_s: float = 0.05,
        lease_s: float = 25.0,
        renew_s: float = 8.0,
        retry_s: float = 1.0,
    ) -> None:
        self._clock = clock
        self._away = away
        self._namespace = namespace
        self._deadline_s = deadline_s
        self._replica = secrets.token_hex(8)
        self._ids = count(1)
        self._boxes: dict[str, Outbox] = {}
        self._here = MemoryStore(clock)
        link = RedisLink(url, probe_s=deadline_s, reply_s=max(5 * deadline_s, 0.25))
        self._seeds = Seeds(link, f"{namespace}:seeded", lambda name: self._box(name).key, ledger_totals)
        self.teller = RedisTeller(link, self._seeds, self._start_anew, lease_s=lease_s, renew_s=renew_s, retry_s=retry_s)

    @property
    def num_away(self) -> int:
        """How often Redis went away."""
        return self.teller.num_away

    @property
    def is_away(self) -> bool:
        """Whether Redis does not answer now."""
        return self.teller.is_away

    async def reserve(self, demand: Demand) -> Decision:
        """As `LimitStore` asks."""
        box, hold_id = self._box(demand.tenant.name), f"{self._replica}-{next(self._ids)}"
        if self.is_away:
            return self._reserve_here(demand, box, hold_id, may_be_known=False)
        answer: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        patience = Patience(self._deadline_s, partial(self._expire, answer))
        box.questions.append(self._question(reserve_operation(hold_id, demand), box, hold_id, answer))
        self.teller.wake(box)
        try:
            numbers = await answer
        except _Away:
            return self._reserve_here(demand, box, hold_id, may_be_known=True)
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None and answer.result()[0]:
                self._release(box, hold_id)
            raise
        finally:
            patience.end()
        decision, windows = read_answer(numbers)
        box.standing = decision.standing
        if windows is not None:
            box.running[hold_id] = True
            decision.hold = RedisHold(self.teller, box, hold_id, demand, windows)
        return decision

    def peek(self, demand: Demand) -> Decision | None:
        """Nothing: it would take as long as `reserve`."""
        return None

    def standing(self, tenant: Tenant) -> Standing | None:
        """What Redis said of the tenant last, or what is counted here while that is away."""
        if self.is_away and self._here.knows(tenant.name):
            return self._here.standing(tenant)
        box = self._boxes.get(tenant.name)
        return None if box is None else box.standing

    def seed(self, spent: Mapping[str, Four]) -> None:
        """What the ledger says was spent, as in `MemoryStore.seed`; a Redis that counts already does not take it again."""
        self._seeds.spent = spent
        unix_s = self._clock.unix_s()
        ends_s = day_end_s(day_of(unix_s)), month_end_s(month_of(day_of(unix_s)))
        for name, (day_tokens, day_nano_usd, month_tokens, month_nano_usd) in spent.items():
            sums = day_tokens, month_tokens, day_nano_usd, month_nano_usd
            self._box(name).standing = Standing((0, 0, 0, 0), 0.0, 0, sums, ends_s, unix_s)
        self.teller.renew()

    async def run(self) -> None:
        """Speak with Redis, until cancelled. Until this runs, and after it, Redis is away."""
        await self.teller.run()

    def _question(self, operation: list[object], box: Outbox, hold_id: str, answer: asyncio.Future[list[int]]) -> Question:
        """A decision. One that nobody waits for any more is taken back, unless the request runs by what was decided here."""

        def answered(numbers: list[int]) -> None:
            if not answer.done():
                answer.set_result(numbers)
            elif numbers[0] and hold_id not in box.running:
                self._release(box, hold_id)

        def lost() -> None:
            if not answer.done():
                answer.set_exception(_Away())
            elif hold_id not in box.running:
                self._release(box, hold_id)

        return Question(operation, answered, lost, answer)

    def _reserve_here(self, demand: Demand, box: Outbox, hold_id: str, *, may_be_known: bool) -> Decision:
        """Decide without Redis. Raises `LimitsAwayError`."""
        if self._away == "closed":
            raise LimitsAwayError("the limits of tenants can't be checked now; try again", retry_after_s=1)
        name, here, day = demand.tenant.name, self._here, day_of(self._clock.unix_s())
        if not here.knows(name) and (last := box.standing) is not None:
            of_day, of_month = last.ends_s[0] == day_end_s(day), last.ends_s[1] == month_end_s(month_of(day))
            spent = last.spent
            here.seed({name: (spent[0] * of_day, spent[2] * of_day, spent[1] * of_month, spent[3] * of_month)})
        decision = here.decide(demand, len(box.running) - here.num_running(name))
        if decision.hold is not None:
            windows = (decision.affordable, day, month_of(day))
            decision.hold = RedisHold(self.teller, box, hold_id, demand, windows, decision.hold)
            box.running[hold_id] = may_be_known
        return decision

    def _box(self, name: str) -> Outbox:
        box = self._boxes.get(name)
        if box is None:
            box = self._boxes[name] = Outbox(f"{self._namespace}:{{{name}}}", self._replica)
            self.teller.add(box)
        return box

    def _start_anew(self) -> None:
        """Redis is back: what is counted here from its next absence on begins with what it last said."""
        self._here = MemoryStore(self._clock)

    def _release(self, box: Outbox, hold_id: str) -> None:
        box.release(hold_id)
        self.teller.wake(box)

    def _expire(self, answer: asyncio.Future[list[int]]) -> None:
        if not answer.done():
            answer.set_exception(_Away())
            self.teller.go_away(f"no answer within {self._deadline_s} s")
