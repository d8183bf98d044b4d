"""Places in the queue, and the accounts of the tenants they belong to.

Role: what a request holds while it waits and while it has a seat (`Place`), and what is known of its tenant (`Account`).
Invariant: a place is charged when it is seated, and once it has left, its account has paid for what was used and nothing else.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

from server.admission.service import Rates
from server.errors import OverloadedError

NUM_CLASSES = 3
"""Service classes: 0 priority, 1 default, 2 flex."""


class Account:
    """One tenant's standing.

    `counter`: virtual service, in 10**-9 uncached input tokens per weight, reservations of seated requests included.
    `num_seated`: seats it holds, for which `at_stake` of the counter was charged. What other replicas need to know is the
    difference to `shared`, the counter at the last exchange; `lifted` of it was no service, but credit that was forgone.
    """

    __slots__ = (
        "_lines",
        "at_stake",
        "counter",
        "is_lifted",
        "is_listed",
        "lifted",
        "name",
        "num_seated",
        "num_waiting",
        "shared",
        "weight",
    )

    def __init__(self, name: str, weight: float, counter: int) -> None:
        self.name = name
        self.weight = weight
        self.counter = counter
        self.at_stake = 0
        self.num_seated = 0
        self.num_waiting = 0
        self.shared = counter
        self.lifted = 0
        self.is_lifted = True
        self.is_listed = False
        self._lines: tuple[OrderedDict[int, Place], ...] = tuple(OrderedDict() for _ in range(NUM_CLASSES))

    @property
    def head(self) -> Place | None:
        """Who is served next: the first of the best class."""
        for line in self._lines:
            if line:
                return next(iter(line.values()))
        return None

    def charge(self, amount: int) -> None:
        """For requests that have a seat; less than 0 takes back."""
        self.counter += amount
        self.at_stake += amount

    @property
    def is_idle(self) -> bool:
        """Nothing waits, and nothing has a seat."""
        return not (self.num_waiting or self.num_seated)

    @property
    def is_shared(self) -> bool:
        """The other replicas have been told everything."""
        return self.counter == self.shared and not self.is_lifted

    def lift(self, counter: int) -> None:
        """To `counter`, if it is below."""
        if counter > self.counter:
            self.lifted += counter - self.counter
            self.counter = counter
            self.is_lifted = True

    def queue(self, place: Place) -> None:
        """At the end of its class."""
        self._lines[place.service_class][place.serial] = place
        self.num_waiting += 1

    def unqueue(self, place: Place) -> None:
        """Wherever it stands."""
        del self._lines[place.service_class][place.serial]
        self.num_waiting -= 1


class Seating(Protocol):
    """Where places are given back; `server.admission.fair_queue.FairQueue` is that."""

    def vacate(self, place: Place) -> None:
        """Take `place` from the queue, or free its seat, at once."""
        ...

    def lowered(self, account: Account) -> None:
        """The counter has gone down while it may be in some order. That it goes up is found in time."""
        ...


class Place:
    """One engine request's place, first in the queue and then at a seat. Whoever got it must `leave`.

    `serial`: order of arrival. `num_output_tokens` were made so far.
    """

    __slots__ = (
        "_base_rates",
        "_charged",
        "_error",
        "_is_prefilled",
        "_is_started",
        "_num_cached",
        "_num_input",
        "_num_reserved_left",
        "_output_rate",
        "_rates",
        "_reported",
        "_seated",
        "_seating",
        "account",
        "has_left",
        "is_seated",
        "num_output_tokens",
        "prefix_key",
        "serial",
        "service_class",
    )

    def __init__(
        self,
        seating: Seating,
        account: Account,
        rates: Rates,
        serial: int,
        *,
        num_input_tokens: int,
        num_output_tokens: int,
        prefix_key: bytes,
        service_class: int,
    ) -> None:
        self.account = account
        self.serial = serial
        self.prefix_key = prefix_key
        self.service_class = service_class
        self.is_seated = False
        self.has_left = False
        self.num_output_tokens = 0
        self._seating = seating
        self._base_rates = self._rates = rates
        self._output_rate = 0
        self._num_input = num_input_tokens
        self._num_cached = 0
        self._charged = 0
        self._num_reserved_left = num_output_tokens
        self._is_prefilled = False
        self._is_started = False
        self._reported = 0
        self._seated: asyncio.Future[None] | None = None
        self._error: OverloadedError | None = None

    async def wait(self) -> None:
        """Return when seated; from then on the engine may be asked. Raises `QueueTimeoutError`, and has left then.

        Cancelled, it leaves as well. One waiter at most.
        """
        if not self.is_seated and self._error is None:
            if self.has_left:
                raise RuntimeError("nobody can wait at a place that was left")
            self._seated = asyncio.get_running_loop().create_future()
            try:
                await self._seated
            except asyncio.CancelledError:
                self.leave()
                raise
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # it has the frames of who waits, and these have this place
        self._is_started = True

    def prefilled(self, num_cached_tokens: int) -> None:
        """The engine has read the prompt, and found this many of its tokens in its cache. The first call counts."""
        if self._is_prefilled or self.has_left:
            return
        self._is_prefilled = True
        self._num_cached = min(num_cached_tokens, self._num_input)
        if self._num_cached:
            self._charge(self._num_cached * (self._rates.cached_input - self._rates.input))
            self._seating.lowered(self.account)

    def produced(self, num_new_tokens: int) -> None:
        """The engine has made tokens. Those beyond the reservation are charged as they come."""
        self.num_output_tokens += num_new_tokens
        self._num_reserved_left -= num_new_tokens
        if self._num_reserved_left < 0:
            self._charge(-self._num_reserved_left * self._output_rate)
            self._num_reserved_left = 0

    def leave(self) -> None:
        """Give up the place, wherever it is, and take back what was charged for nothing. May be called twice."""
        if self.has_left:
            return
        self._seating.vacate(self)
        if self._seated is not None and not self._seated.done():
            self._seated.cancel()

    @property
    def service(self) -> int:
        """What was given so far, in 10**-9 uncached input tokens, the weight left aside. Never goes down.

        A prompt counts when it has been read, or when the client leaves while it may be.
        """
        rates = self._base_rates
        service = self.num_output_tokens * rates.output
        if self._is_prefilled or (self.has_left and self._is_started):
            service += (self._num_input - self._num_cached) * rates.input + self._num_cached * rates.cached_input
        return service

    def take_service(self) -> int:
        """What came to `service` since the last call."""
        before, self._reported = self._reported, self.service
        return self._reported - before

    def seat(self) -> None:
        """For the queue: give it a seat, and charge its reservation at the weight that its tenant has now."""
        self.is_seated = True
        self._rates = self._base_rates.over(self.account.weight)
        self._output_rate = self._rates.output
        self._charge(self._num_input * self._rates.input + self._num_reserved_left * self._output_rate)
        if self._seated is not None and not self._seated.done():
            self._seated.set_result(None)

    def refund(self) -> None:
        """For the queue: take back what of the reservation was not used. A prompt that may have been read stays charged."""
        unused = self._num_reserved_left * self._output_rate
        if not self._is_started:
            unused += self._num_input * self._rates.input
        self._charge(-unused)
        self.account.at_stake -= self._charged
        self._num_reserved_left = self._charged = 0

    def _charge(self, amount: int) -> None:
        self._charged += amount
        self.account.charge(amount)

    def refuse(self, error: OverloadedError) -> None:
        """For the queue, which has taken it out: whoever waits learns why."""
        self._error = error
        if self._seated is not None and not self._seated.done():
            self._seated.set_result(None)
