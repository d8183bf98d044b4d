"""The queue before the engine: who gets a seat next, and who may wait.

Role: between a request that is ready and the engine, which is given no more requests than it has seats. Tenants that wait are
served in proportion to their weights, by what their requests really cost.
Invariant: no seat that is open to all is free while anyone waits, and no reserved one while someone waits who may have it (for
longer than `POLL_S`, where only the passing of time made it so). A place that was left, expired or cancelled
leaves nothing behind. Everything here is synchronous and made of decisions in O(log tenants).
Must not: ask the engine for more than its figures, or wait for anything outside this process.
"""

from __future__ import annotations

import itertools
from typing import Final

from server.admission.accounts import Accounts
from server.admission.deadlines import Alarm, CallLater, Deadlines, on_loop
from server.admission.order import Order
from server.admission.place import NUM_CLASSES, Account, Place
from server.admission.pressure import EngineFigures, Pressure
from server.admission.seats import SeatsElsewhere
from server.admission.service import UNIT, Rates
from server.clock import Clock
from server.context import Tenant
from server.errors import OverloadedError, QueueTimeoutError, RateLimitError
from server.models import Price
from server.quoting import cut
from server.sections import AdmissionSettings

POLL_S: Final = 0.05
"""How often the engine's figures are looked at while something waits."""

SHARED_POLL_S: Final = 0.005
"""The same where seats come free in other processes."""

_ROOM_SHARE: Final = 8


class FairQueue:
    """Gives out `num_seats` seats. All methods are called on one event loop.

    The last `reserved_seats` of them go only to tenants that hold fewer seats than that and are not far ahead of the others:
    a flood of one leaves room for them. `elsewhere`: the other processes that give out the same seats, where there are any.
    """

    def __init__(
        self,
        num_seats: int,
        settings: AdmissionSettings,
        clock: Clock,
        stats: EngineFigures,
        elsewhere: SeatsElsewhere | None = None,
        *,
        call_later: CallLater = on_loop,
    ) -> None:
        self._settings = settings
        wanted = num_seats // 16 if settings.reserved_seats is None else settings.reserved_seats
        self._num_reserved = min(wanted, num_seats - 1)
        self._pressure = Pressure(num_seats, settings.max_kv_cache_usage, elsewhere or stats, clock)
        self._elsewhere = elsewhere
        self._order = Order(self._num_reserved, settings.prefix_quantum_tokens)
        self.accounts = Accounts(self._order)
        self._deadlines = Deadlines(settings.queue_timeout_s, clock, call_later, self._expire)
        self._call_later = call_later
        self._poll: Alarm | None = None
        self._serial = itertools.count(1)
        self._seated: set[Place] = set()
        self._service: dict[str, int] = {}

    def join(
        self,
        tenant: Tenant,
        price: Price,
        *,
        num_places: int,
        num_input_tokens: int,
        num_output_tokens: int,
        prefix_key: bytes = b"",
        service_class: int = 1,
    ) -> list[Place]:
        """Places for `num_places` equal requests, each of which must `leave` in the end; those that can are seated at once.

        `num_output_tokens`: of one answer, as far as can be told. `prefix_key`: the same for prompts that begin alike in the same
        prefix cache; empty for none. `service_class`: 0 comes before 1 comes before 2, among this tenant's own.
        Raises `RateLimitError` where too much of this tenant's waits, and `OverloadedError` where too much waits in all, or the
        engine is under pressure. Then nothing has happened.
        """
        if num_places < 1 or not 0 <= service_class < NUM_CLASSES:
            raise ValueError(f"{num_places} places of class {service_class} can't be asked for")
        self._look()
        self._fill()
        rates = Rates.of(price)
        charge = round((num_input_tokens * rates.input + num_output_tokens * rates.output) / tenant.weight)
        account = self.accounts.get(tenant.name)
        num_to_wait = num_places - self._num_free(account, num_places, charge)
        if num_to_wait:
            self._check_room(tenant, 0 if account is None else account.num_waiting, num_to_wait, service_class)
        account = self.accounts.open(tenant)
        places = [
            Place(
                self,
                account,
                rates,
                next(self._serial),
                num_input_tokens=num_input_tokens,
                num_output_tokens=num_output_tokens,
                prefix_key=prefix_key,
                service_class=service_class,
            )
            for _ in range(num_places)
        ]
        if num_to_wait == 0 and not self._deadlines and self._elsewhere is None:
            for place in places:  # nobody waits whose turn it could be
                self._give_seat(account, place)
            return places
        was_head = account.head
        for place in places:
            account.queue(place)
            self._deadlines.add(place)
        if account.head is not was_head:
            self._order.file(account)
        self._fill()
        return places

    def vacate(self, place: Place) -> None:
        """For `Place.leave`: as there."""
        self._look()
        account = place.account
        place.has_left = True
        if place.is_seated:
            self._seated.remove(place)
            account.num_seated -= 1
            place.refund()
            self._report(place)
            self._order.file(account)
        else:
            self._unqueue(place)
        self._fill()
        self.accounts.tidy(account)

    def lowered(self, account: Account) -> None:
        """For whoever lowers a counter: it may be in the order."""
        if account.num_waiting:
            self._order.file(account)

    @property
    def num_queued(self) -> int:
        """Requests that wait."""
        return len(self._deadlines)

    @property
    def num_seated(self) -> int:
        """Requests that have a seat."""
        return len(self._seated)

    @property
    def num_allowed(self) -> int:
        """Seats that may be taken now, those included that are."""
        return self._pressure.num_allowed(self._num_taken)

    @property
    def least(self) -> int | None:
        """The least counter of those that wait; None where nobody does."""
        return self._order.least

    def queued_by_tenant(self) -> dict[str, int]:
        """Of each tenant with requests that wait, how many."""
        return {account.name: account.num_waiting for account in self.accounts if account.num_waiting}

    def take_service(self) -> dict[str, float]:
        """What tenants were given since the last call, in uncached input tokens, the weights left aside."""
        for place in self._seated:
            self._report(place)
        taken, self._service = self._service, {}
        return {name: service / UNIT for name, service in taken.items() if service}

    def _num_free(self, account: Account | None, most: int, charge: int) -> int:
        """How many seats a tenant would get at once, `most` at most, each for `charge`.

        Where something of it waits, there is none, or it had it.
        """
        if account is not None and account.num_waiting:
            return 0
        floor = self.accounts.floor
        counter, num_held = (floor, 0) if account is None else (max(floor, account.counter), account.num_seated)
        num_seated = self._num_taken
        num_free = 0
        while num_free < most and self._may_seat(num_seated + num_free, num_held + num_free, counter + num_free * charge):
            num_free += 1
        return num_free

    def _may_seat(self, num_seated: int, num_held: int, counter: int) -> bool:
        """Whether a tenant that holds `num_held` seats may have another, while `num_seated` are taken."""
        num_allowed = self._pressure.num_allowed(num_seated)
        if num_seated < self._num_common(num_allowed):
            return num_seated < num_allowed
        return num_seated < num_allowed and num_held < self._num_reserved and self._order.admits(counter)

    def _num_common(self, num_allowed: int) -> int:
        """How many seats are open to all."""
        return num_allowed - min(self._num_reserved, num_allowed - 1)

    def _check_room(self, tenant: Tenant, num_waiting: int, num_more: int, service_class: int) -> None:
        """Whether `num_more` of a tenant may wait beside `num_waiting` of it.

        A queue that is nearly full is kept for those who have little in it: one tenant's part is at most 8 times what is left. So
        those who flood it don't fill it.
        """
        settings = self._settings
        if self._pressure.sheds(service_class):
            raise OverloadedError("the engine is at the end of its memory and takes no new requests for now; try again later")
        if num_waiting + num_more > settings.max_queued_per_tenant:
            raise RateLimitError(
                f"{num_waiting} requests of `{cut(tenant.name)}` wait for a seat already, and {num_more} more would be over "
                f"{settings.max_queued_per_tenant}; send fewer at once, or try again later",
                reason="queue_full",
                retry_after_s=5,
            )
        room = settings.max_queued - self.num_queued - num_more + 1
        if room < 1 or num_waiting + num_more > _ROOM_SHARE * room:
            raise OverloadedError("the queue is full; try again later")  # how many wait is not this tenant's business

    def _fill(self) -> None:
        """Give the seats that may be given."""
        while self._deadlines:
            num_seated = self._num_taken
            num_allowed = self._pressure.num_allowed(num_seated)
            if num_seated >= num_allowed or self._others_come_first():
                break
            is_common = num_seated < self._num_common(num_allowed)
            account = self._order.next() if is_common else self._order.next_light()
            if account is None or (place := account.head) is None:
                break
            self._seat(account, place)
            self._tell()
        self._tell()
        if self._deadlines and self._poll is None:
            poll_s = POLL_S if self._elsewhere is None else SHARED_POLL_S
            self._poll = self._call_later(poll_s, self._look_again)
        elif not self._deadlines and self._poll is not None:
            self._poll.cancel()
            self._poll = None

    def _seat(self, account: Account, place: Place) -> None:
        account.unqueue(place)
        self._deadlines.discard(place)
        self._give_seat(account, place)

    def _give_seat(self, account: Account, place: Place) -> None:
        account.num_seated += 1
        self._seated.add(place)
        place.seat()
        self.accounts.served(account)
        self._order.file(account)
        self._order.served(place.prefix_key)

    def _unqueue(self, place: Place) -> None:
        account = place.account
        was_head = account.head is place
        account.unqueue(place)
        self._deadlines.discard(place)
        if was_head:
            self._order.file(account)

    def _expire(self, place: Place) -> None:
        place.has_left = True
        self._unqueue(place)
        waited = f"{self._settings.queue_timeout_s:g} s"
        place.refuse(QueueTimeoutError(f"the request waited {waited} for a seat and got none; try again later"))
        self._fill()
        self.accounts.tidy(place.account)

    def _report(self, place: Place) -> None:
        name = place.account.name
        self._service[name] = self._service.get(name, 0) + place.take_service()

    def _look(self) -> None:
        self._pressure.look(self._num_taken)

    @property
    def _num_taken(self) -> int:
        """Seats that are taken, here or elsewhere."""
        return len(self._seated) + (0 if self._elsewhere is None else self._elsewhere.num_seated)

    def _others_come_first(self) -> bool:
        """Whether the next free seat is for somebody who waits elsewhere."""
        return self._elsewhere is not None and (least := self.least) is not None and self._elsewhere.come_first(least)

    def _tell(self) -> None:
        if self._elsewhere is not None:
            self._elsewhere.tell(len(self._seated), len(self._deadlines), self.least)

    def _look_again(self) -> None:
        self._poll = None
        self._look()
        self._fill()
