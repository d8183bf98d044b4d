"""A fair queue in time that moves when told to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from server.admission.fair_queue import FairQueue
from server.admission.place import Place
from server.admission.service import UNIT
from server.clock import ManualClock
from server.context import Tenant
from server.engine.scripted.timer import ManualTimer
from server.models import Price
from server.sections import AdmissionSettings

A, B, C = Tenant("a"), Tenant("b"), Tenant("c")


@dataclass
class Figures:
    kv_cache_usage: float = 0.0
    num_preemptions: int = 0


class Bench:
    """A queue in time that moves when told to."""

    def __init__(self, num_seats: int, **settings: Any) -> None:
        self.timer = ManualTimer(ManualClock())
        self.figures = Figures()
        settings = {"reserved_seats": 0, "prefix_quantum_tokens": 0, **settings}
        self.queue = FairQueue(
            num_seats, AdmissionSettings(**settings), self.timer.clock, self.figures, call_later=self.timer.call_later
        )

    def join(
        self, tenant: Tenant, num_input: int = 100, num_output: int = 0, *, num_places: int = 1, **given: Any
    ) -> list[Place]:
        price = given.pop("price", Price())
        return self.queue.join(
            tenant, price, num_places=num_places, num_input_tokens=num_input, num_output_tokens=num_output, **given
        )

    def one(self, tenant: Tenant, num_input: int = 100, num_output: int = 0, **given: Any) -> Place:
        return self.join(tenant, num_input, num_output, **given)[0]

    def counter(self, tenant: Tenant) -> float:
        account = self.queue.accounts.get(tenant.name)
        assert account is not None
        return account.counter / UNIT

    def assert_empty(self) -> None:
        assert (0, 0) == (self.queue.num_queued, self.queue.num_seated)
        assert {} == self.queue.queued_by_tenant()
        assert [] == self.timer.pending
        assert all(account.is_idle and account.at_stake == 0 for account in self.queue.accounts)


def start(place: Place) -> None:
    """Wait for the seat that `place` has."""
    with pytest.raises(StopIteration):
        place.wait().send(None)


def serve_all(bench: Bench, places: list[Place], *, most: int = 10**6) -> str:
    """Whose requests are served, one after the other, where there is one seat."""
    order = ""
    while len(order) < most and (seated := next((place for place in places if place.is_seated and not place.has_left), None)):
        order += seated.account.name
        start(seated)
        seated.leave()
    return order
