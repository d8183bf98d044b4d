"""The accounts of all tenants that matter now.

Invariant: a tenant that comes back gets no credit for the time it had nothing to ask for: it starts at `floor`, at least. So
whoever is idle and not above that may be forgotten: it would start there anyway.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from server.admission.order import Order
from server.admission.place import Account
from server.context import Tenant


class Accounts:
    """Tenant name -> account.

    With `keeps_unshared`, accounts stay until other replicas have been told of them. `others_floor`: the least counter of those
    that wait at other replicas, where it is known.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._accounts: dict[str, Account] = {}
        self._idle: list[tuple[int, int, Account]] = []
        self._num_listed = 0
        self._served_last: Account | None = None
        self.keeps_unshared = False
        self.others_floor: int | None = None

    def __len__(self) -> int:
        return len(self._accounts)

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def get(self, name: str) -> Account | None:
        """The account of the tenant, where it has one now."""
        return self._accounts.get(name)

    def open(self, tenant: Tenant) -> Account:
        """The account of a tenant that asks for something, with the tenant's present weight; lifted where nothing of it waits."""
        account = self._accounts.get(tenant.name)
        if account is None:
            account = self._accounts[tenant.name] = Account(tenant.name, tenant.weight, self.floor)
        elif not account.num_waiting:
            account.lift(self.floor)
        account.weight = tenant.weight
        return account

    @property
    def floor(self) -> int:
        """The least counter of those that wait; where nobody does, of the tenant served last or those that wait elsewhere."""
        if (least := self._order.least) is not None:
            return least
        served_last = 0 if self._served_last is None else self._served_last.counter
        return served_last if self.others_floor is None else max(served_last, self.others_floor)

    def served(self, account: Account) -> None:
        """A request of it was seated."""
        self._served_last = account

    def tidy(self, account: Account) -> None:
        """Forget `account` if it is idle and may be forgotten, and those for which the time has come."""
        if account.is_idle and not account.is_listed:
            account.is_listed = True
            self._list(account)
        floor = self.floor
        while self._idle and self._idle[0][0] <= floor:
            idle = heapq.heappop(self._idle)[2]
            if not idle.is_idle or self._accounts.get(idle.name) is not idle:
                idle.is_listed = False
            elif idle.counter > floor:
                self._list(idle)
            elif self.keeps_unshared and not idle.is_shared:
                idle.is_listed = False  # comes again when they know
            else:
                del self._accounts[idle.name]

    def _list(self, account: Account) -> None:
        self._num_listed += 1
        heapq.heappush(self._idle, (account.counter, self._num_listed, account))
