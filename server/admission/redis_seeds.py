"""What the ledger says was spent, for a Redis that has not counted before.

Invariant: a Redis that counts takes it only once, however many replicas offer it: a mark says that it has, and each window says
so, too. A Redis that lost its data lost the mark, and is given the ledger's sums anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from server.admission.limits import Four
from server.admission.redis_link import RedisLink
from server.admission.redis_outbox import encode

MARK_TTL_S: Final = 400 * 86_400
log = structlog.get_logger(__name__)
LedgerTotals = Callable[[], Awaitable[Mapping[str, Four]]]
"""Tenant -> tokens of the current day, nano-USD of the day, the same of the month."""


class Seeds:
    """`key_of` gives the keys of a tenant; `ledger_totals` is asked where Redis has lost what it was given."""

    def __init__(self, link: RedisLink, mark: str, key_of: Callable[[str], str], ledger_totals: LedgerTotals | None) -> None:
        self.spent: Mapping[str, Four] | None = None
        self._link = link
        self._mark = mark
        self._key_of = key_of
        self._ledger_totals = ledger_totals
        self._was_given = False

    async def give(self) -> None:
        """Give them, if Redis has none. Raises what the link raises."""
        if self.spent is None:
            await self._link.ask("PING")
            return
        if not await self._link.ask("EXPIRE", self._mark, MARK_TTL_S):
            if self._was_given and self._ledger_totals is not None:
                try:
                    self.spent = await self._ledger_totals()
                except Exception:
                    log.exception("ledger_totals_unknown")
                    return
            given = [(self._key_of(name), encode(loose=[["seed", *spent]])) for name, spent in self.spent.items()]
            await self._link.call(given)
            await self._link.ask("SET", self._mark, 1, "EX", MARK_TTL_S)
        self._was_given = True
