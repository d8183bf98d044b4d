"""The fair queue against a model that has no structure to get wrong, and the bounds that fairness is promised in."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.admission.fair_queue import POLL_S, FairQueue
from server.admission.place import Place
from server.admission.service import UNIT, Rates
from server.clock import ManualClock
from server.context import Tenant
from server.engine.scripted.timer import ManualTimer
from server.models import Price
from server.sections import AdmissionSettings
from tests.admission.queues import Figures, start

WEIGHTS = (0.5, 1.0, 1.0, 3.0, 10.0)
RATES = Rates.of(Price())


@dataclass(eq=False)
class Request:
    serial: int
    tenant: str
    num_input: int
    num_output: int
    prefix: bytes
    service_class: int
    rates: Rates = RATES
    charged: int = 0
    num_left: int = 0
    is_started: bool = False


@dataclass(eq=False)
class Standing:
    weight: float
    counter: int
    waiting: list[Request] = field(default_factory=list)
    seated: list[Request] = field(default_factory=list)

    @property
    def head(self) -> Request:
        return min(self.waiting, key=lambda request: (request.service_class, request.serial))

    @property
    def key(self) -> tuple[int, int]:
        return self.counter, self.head.serial


class Model:
    """The rules as they are written down, looking at everything for each decision."""

    def __init__(self, num_seats: int, num_reserved: int, quantum_tokens: int) -> None:
        self.num_seats = num_seats
        self.num_reserved = num_reserved
        self.quantum = quantum_tokens * UNIT
        self.tenants: dict[str, Standing] = {}
        self.served_last: Standing | None = None
        self.hot: set[bytes] = set()

    def waiting(self) -> list[Standing]:
        return [tenant for tenant in self.tenants.values() if tenant.waiting]

    @property
    def seated(self) -> set[int]:
        return {request.serial for tenant in self.tenants.values() for request in tenant.seated}

    @property
    def floor(self) -> int:
        if waiting := self.waiting():
            return min(tenant.counter for tenant in waiting)
        return self.served_last.counter if self.served_last else 0

    def join(self, request: Request, weight: float) -> None:
        tenant = self.tenants.setdefault(request.tenant, Standing(weight, self.floor))
        if not tenant.waiting:
            tenant.counter = max(tenant.counter, self.floor)
        tenant.waiting.append(request)

    def leave(self, request: Request) -> None:
        tenant = self.tenants[request.tenant]
        if request in tenant.seated:
            tenant.seated.remove(request)
            tenant.counter -= request.num_left * request.rates.output
            if not request.is_started:
                tenant.counter -= request.num_input * request.rates.input
        else:
            tenant.waiting.remove(request)
        self.fill()
        floor = self.floor
        for name, idle in list(self.tenants.items()):
            if not (idle.waiting or idle.seated) and idle.counter <= floor:
                del self.tenants[name]

    def charge(self, request: Request, amount: int) -> None:
        request.charged += amount
        self.tenants[request.tenant].counter += amount

    def next(self) -> Standing | None:
        waiting = self.waiting()
        if len(self.seated) >= self.num_seats or not waiting:
            return None
        if len(self.seated) >= self.num_seats - self.num_reserved:
            heavy = [tenant for tenant in waiting if len(tenant.seated) >= self.num_reserved]
            waiting = [tenant for tenant in waiting if len(tenant.seated) < self.num_reserved]
            if heavy:
                least = min(heavy, key=lambda tenant: tenant.key)
                most = least.counter + sum(request.charged for request in least.seated)
                waiting = [tenant for tenant in waiting if tenant.counter <= most]
        if not waiting:
            return None
        first = min(waiting, key=lambda tenant: tenant.key)
        hot = [tenant for tenant in waiting if self.quantum and tenant.head.prefix in self.hot]
        if hot:
            best = min(hot, key=lambda tenant: tenant.key)
            if (best.counter - first.counter) * best.weight <= self.quantum:
                return best
        return first

    def fill(self) -> None:
        while tenant := self.next():
            request = tenant.head
            tenant.waiting.remove(request)
            tenant.seated.append(request)
            request.rates = RATES.over(tenant.weight)
            request.num_left = request.num_output
            self.charge(request, request.num_input * request.rates.input + request.num_output * request.rates.output)
            self.served_last = tenant
            if request.prefix:
                self.hot.add(request.prefix)


class Pair:
    """The queue and the model, told the same."""

    def __init__(self, num_seats: int, num_reserved: int, quantum_tokens: int) -> None:
        self.timer = ManualTimer(ManualClock())
        given = AdmissionSettings(
            reserved_seats=num_reserved, prefix_quantum_tokens=quantum_tokens, queue_timeout_s=1e6, max_queued_per_tenant=4096
        )
        self.queue = FairQueue(num_seats, given, self.timer.clock, Figures(), call_later=self.timer.call_later)
        self.model = Model(num_seats, min(num_reserved, num_seats - 1), quantum_tokens)
        self.places: dict[Request, Place] = {}
        self.num_seats = num_seats

    def do(self, draw: random.Random) -> None:
        if not self.places or draw.random() < 0.45:
            self.join(draw)
        else:
            request = draw.choice(list(self.places))
            place = self.places[request]
            if not place.is_seated or draw.random() < 0.5:
                del self.places[request]
                place.leave()
                self.model.leave(request)
            elif not request.is_started:
                start(place)
                request.is_started = True
                num_cached = draw.randrange(request.num_input + 1)
                place.prefilled(num_cached)
                self.model.charge(request, num_cached * (request.rates.cached_input - request.rates.input))
            else:
                num_new = draw.randrange(30)
                place.produced(num_new)
                request.num_left -= num_new
                if request.num_left < 0:
                    self.model.charge(request, -request.num_left * request.rates.output)
                    request.num_left = 0
        self.timer.advance(POLL_S)  # what was made possible by the passing of time alone is noticed
        self.model.fill()
        self.compare()

    def join(self, draw: random.Random) -> None:
        number = draw.randrange(len(WEIGHTS))
        tenant = Tenant(f"t{number}", weight=WEIGHTS[number])
        num_input, num_output = draw.randint(1, 300), draw.randint(0, 60)
        prefix, service_class = draw.choice((b"", b"x", b"y", b"t%d" % number)), draw.randrange(3)
        places = self.queue.join(
            tenant,
            Price(),
            num_places=draw.choice((1, 1, 1, 3)),
            num_input_tokens=num_input,
            num_output_tokens=num_output,
            prefix_key=prefix,
            service_class=service_class,
        )
        for place in places:
            request = Request(place.serial, tenant.name, num_input, num_output, prefix, service_class)
            self.places[request] = place
            self.model.join(request, tenant.weight)
        self.model.fill()

    def compare(self) -> None:
        seated = {place.serial for place in self.places.values() if place.is_seated}
        assert self.model.seated == seated
        assert len(seated) == self.queue.num_seated <= self.num_seats
        assert len(self.places) - len(seated) == self.queue.num_queued
        counters = {account.name: account.counter for account in self.queue.accounts}
        assert {name: tenant.counter for name, tenant in self.model.tenants.items()} == counters
        at_stake = {account.name: account.at_stake for account in self.queue.accounts}
        assert {name: sum(request.charged for request in of.seated) for name, of in self.model.tenants.items()} == at_stake


@given(
    seed=st.integers(0, 2**32),
    num_seats=st.integers(1, 9),
    num_reserved=st.integers(0, 4),
    quantum_tokens=st.sampled_from((0, 0, 200, 1000)),
)
@settings(max_examples=150, deadline=None)
def test_every_decision_is_the_models(seed: int, num_seats: int, num_reserved: int, quantum_tokens: int) -> None:
    draw = random.Random(seed)
    pair = Pair(num_seats, num_reserved, quantum_tokens)
    for _ in range(150):
        pair.do(draw)
    for place in pair.places.values():
        place.leave()
        place.leave()
    assert (0, 0, {}) == (pair.queue.num_seated, pair.queue.num_queued, pair.queue.queued_by_tenant())
    assert all(account.is_idle and account.at_stake == 0 for account in pair.queue.accounts)
    assert [] == pair.timer.pending


@pytest.mark.long
@given(seed=st.integers(0, 2**32), num_seats=st.integers(1, 40), num_reserved=st.integers(0, 20))
@settings(max_examples=300, deadline=None)
def test_every_decision_is_the_models_for_long(seed: int, num_seats: int, num_reserved: int) -> None:
    draw = random.Random(seed)
    pair = Pair(num_seats, num_reserved, draw.choice((0, 500, 5000)))
    for _ in range(1000):
        pair.do(draw)


def backlog(num_seats: int, tenants: list[Tenant], draw: random.Random, **given: Any) -> tuple[FairQueue, dict[Place, int]]:
    """A queue in which each of `tenants` has much waiting; all places, with the lengths of their answers."""
    timer = ManualTimer(ManualClock())
    queue = FairQueue(num_seats, AdmissionSettings(**given), timer.clock, Figures(), call_later=timer.call_later)
    places = {}
    for _ in range(100):
        for tenant in tenants:
            num_output = draw.randint(0, 100)
            (place,) = queue.join(
                tenant,
                Price(),
                num_places=1,
                num_input_tokens=draw.randint(1, 500),
                num_output_tokens=num_output,
                prefix_key=draw.choice((b"", b"x", tenant.name.encode())),
            )
            places[place] = num_output
    return queue, places


@given(
    seed=st.integers(0, 2**32),
    num_seats=st.integers(1, 20),
    weight=st.sampled_from((1.0, 3.0, 10.0)),
    quantum_tokens=st.sampled_from((0, 2000)),
)
@settings(max_examples=40, deadline=None)
def test_the_gap_between_two_backlogged_tenants_is_bounded(seed: int, num_seats: int, weight: float, quantum_tokens: int) -> None:
    """By one request's most and the quantum, whatever their requests are like: per weight, no one is ahead by more."""
    draw = random.Random(seed)
    tenants = [Tenant("a", weight=1), Tenant("b", weight=weight)]
    queue, num_output = backlog(num_seats, tenants, draw, reserved_seats=0, prefix_quantum_tokens=quantum_tokens)
    a, b = (queue.accounts.get(tenant.name) for tenant in tenants)
    assert a is not None
    assert b is not None
    most = (500 + 100 * 5 + quantum_tokens) * UNIT
    running = [place for place in num_output if place.is_seated]
    while a.num_waiting and b.num_waiting:
        place = running.pop(draw.randrange(len(running)))
        start(place)
        place.produced(num_output[place])
        place.leave()
        running = [place for place in num_output if place.is_seated and not place.has_left]
        assert -most / weight <= a.counter - b.counter <= most
        assert num_seats == queue.num_seated


def test_service_follows_the_weights_however_wrong_the_reservations_are() -> None:
    """One tenant's answers are a tenth of what was reserved for them, the other's ten times as long."""
    draw = random.Random(7)
    tenants = [Tenant("a", weight=1), Tenant("b", weight=2)]
    timer = ManualTimer(ManualClock())
    queue = FairQueue(8, AdmissionSettings(reserved_seats=0), timer.clock, Figures(), call_later=timer.call_later)
    running: list[tuple[Place, int]] = []
    lines: dict[str, list[Place]] = {"a": [], "b": []}
    for _ in range(4000):
        for tenant in tenants:
            while len(lines[tenant.name]) < 5:
                lines[tenant.name] += queue.join(tenant, Price(), num_places=1, num_input_tokens=10, num_output_tokens=100)
        for name, line in lines.items():
            for place in [place for place in line if place.is_seated]:
                line.remove(place)
                start(place)
                place.prefilled(0)
                running.append((place, 10 if name == "a" else 1000))
        index = draw.randrange(len(running))
        place, num_left = running[index]
        place.produced(min(5, num_left))
        running[index] = (place, num_left - 5)
        if num_left <= 5:
            running.pop(index)
            place.leave()
    service = queue.take_service()
    assert 2 == pytest.approx(service["b"] / service["a"], rel=0.1)
