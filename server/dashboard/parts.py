"""What a worker tells the one that shows the page, where a gateway has several, and how that one remembers it.

Role: the first worker keeps the history and makes the tables, from its own counts and what the others told last; whoever is asked
for the page's figures asks it. Invariant: where a worker does not answer, what it said before stands.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from server.admission.limits import Standing
from server.dashboard.counts import TenantCounts, counts_of, tenant_counts
from server.dashboard.points import Counts, added
from server.dashboard.replica import STATUS, answer_status
from server.engine.together import together
from server.errors import OverloadedError
from server.gateway import Gateway
from server.whole import decoded_part, engine_part

if TYPE_CHECKING:
    from server.dashboard.dashboard import Dashboard

COUNTS: Final = "counts"
TENANTS: Final = "tenants"
FIGURES: Final = "figures"
Answer = Callable[[bytes], AsyncIterator[bytes]]


class TenantsPart(msgspec.Struct, frozen=True):
    """Of one worker's tenants, by name. `places`: seats they have there, and requests that wait; `standings`: as heard last."""

    counts: dict[str, TenantCounts] = {}
    service: dict[str, float] = {}
    places: dict[str, tuple[int, int]] = {}
    standings: dict[str, Standing] = {}


_COUNTS: Final = msgspec.msgpack.Decoder(Counts)
_TENANTS: Final = msgspec.msgpack.Decoder(TenantsPart)


class Elsewhere:
    """What the other workers of `gateway` said last. One that is alone has none."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._counts: list[list[bytes]] = []
        self.tenants: Sequence[TenantsPart] = ()

    @property
    def num_engines(self) -> int:
        """How many engines all workers have together."""
        gateway = self._gateway
        return 1 if gateway.others is None or gateway.seats_elsewhere is not None else gateway.others.count

    async def look(self) -> None:
        """Ask them for their counts."""
        self._counts = await self._asked(COUNTS) or self._counts

    async def look_at_tenants(self) -> None:
        """Ask them for those of their tenants."""
        frames = await self._asked(TENANTS)
        self.tenants = [_TENANTS.decode(frame) for frame, *_ in frames[1:]] or self.tenants

    def counts(self) -> Counts:
        """Of all workers together."""
        own = counts_of(self._gateway)
        if not self._counts:
            return own
        others = self._counts[1:]
        parts = [engine_part(self._gateway), *(part for _, part in others)]
        known = [part for part in map(decoded_part, parts) if part is not None]
        stats = together([part.stats for part in known], is_idle=not any(part.num_unfinished for part in known))
        return added([own, *(_COUNTS.decode(counts) for counts, _ in others)], stats if known else None)

    @property
    def tenant_counts(self) -> list[dict[str, TenantCounts]]:
        """Of each other worker."""
        return [part.counts for part in self.tenants]

    def places(self, name: str) -> tuple[int, int]:
        """Seats that a tenant has at the others, and requests that wait there."""
        found = [part.places[name] for part in self.tenants if name in part.places]
        return sum(seated for seated, _ in found), sum(waiting for _, waiting in found)

    def waiting(self) -> set[str]:
        """Tenants that have requests waiting for a seat, at any worker."""
        queue = self._gateway.queue
        own = {account.name for account in queue.accounts if account.num_waiting} if queue is not None else set()
        return own.union(name for part in self.tenants for name, (_, num_waiting) in part.places.items() if num_waiting)

    def standing(self, name: str, own: Standing | None) -> Standing | None:
        """The newest that anybody knows of a tenant."""
        known = [part.standings[name] for part in self.tenants if name in part.standings]
        return max([*known, *([] if own is None else [own])], key=lambda standing: standing.unix_s, default=None)

    def service(self) -> Mapping[str, float]:
        """Of the fair queues of all workers together."""
        given = dict(self._gateway.service())
        for part in self.tenants:
            for name, service in part.service.items():
                given[name] = given.get(name, 0.0) + service
        return given

    async def _asked(self, question: str) -> list[list[bytes]]:
        others = self._gateway.others
        if others is None:
            return []
        try:
            return await others.ask_all(question)
        except OverloadedError:
            return []


def answers(gateway: Gateway, dashboard: Dashboard) -> dict[str, Answer]:
    """Question -> how a worker answers it."""

    async def counts(_: bytes) -> AsyncIterator[bytes]:
        yield msgspec.msgpack.encode(counts_of(gateway))
        yield engine_part(gateway)

    async def tenants(_: bytes) -> AsyncIterator[bytes]:
        yield msgspec.msgpack.encode(_tenants_part(gateway))

    async def figures(argument: bytes) -> AsyncIterator[bytes]:
        yield await dashboard.answer(argument)

    async def status(_: bytes) -> AsyncIterator[bytes]:
        for part in answer_status(gateway):
            yield part

    return {COUNTS: counts, TENANTS: tenants, FIGURES: figures, STATUS: status}


def _tenants_part(gateway: Gateway) -> TenantsPart:
    queue, store = gateway.queue, gateway.admission.store
    counts = dict(tenant_counts(gateway))
    standings = {}
    for name in counts:
        tenant = gateway.storage.keys.tenant(name)
        if tenant is not None and (standing := store.standing(tenant)) is not None:
            standings[name] = standing
    places = {} if queue is None else {account.name: (account.num_seated, account.num_waiting) for account in queue.accounts}
    return TenantsPart(counts, dict(gateway.service()), places, standings)
