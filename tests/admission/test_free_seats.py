"""A free seat that nobody waits for is taken past the queue: nothing shows it, whatever comes before and after."""

from __future__ import annotations

import random

import pytest

from server.admission.fair_queue import FairQueue
from server.admission.place import Place
from server.context import Tenant
from server.errors import OverloadedError, RateLimitError
from server.models import Price
from tests.admission.queues import Bench

TENANTS = [Tenant("a"), Tenant("b", weight=2.0), Tenant("c")]


class Nobody:
    """Other processes that want nothing; where there are any, every request stands in the queue first."""

    num_seated = 0
    kv_cache_usage = 0.0
    num_preemptions = 0

    def come_first(self, counter: int) -> bool:
        return False

    def tell(self, num_seated: int, num_waiting: int, least: int | None) -> None:
        pass


def step(bench: Bench, chance: random.Random, places: list[list[Place]]) -> list[object]:
    """One thing that happens to a queue, and what came of it."""
    queue = bench.queue
    kind = chance.random()
    tenant, number = chance.choice(TENANTS), chance.randrange(1, 4)
    tokens, prefix, service_class = chance.randrange(1, 400), bytes([chance.randrange(3)]), chance.randrange(3)
    at, cached = chance.random(), chance.randrange(50)
    alive = [place for joined in places for place in joined if not place.has_left]
    if kind < 0.5 or not alive:
        try:
            joined = queue.join(
                tenant, Price(), num_places=number, num_input_tokens=tokens, num_output_tokens=tokens, prefix_key=prefix,
                service_class=service_class,
            )  # fmt: skip
        except (OverloadedError, RateLimitError) as error:
            return [type(error).__name__]
        places.append(joined)
    elif kind < 0.6:
        alive[int(at * len(alive))].prefilled(cached)
    elif kind < 0.7:
        alive[int(at * len(alive))].produced(tokens)
    else:
        alive[int(at * len(alive))].leave()
    return [
        [(place.is_seated, place.has_left, place.service) for joined in places for place in joined],
        [(account.name, account.counter, account.at_stake, account.num_seated) for account in queue.accounts],
        (queue.num_queued, queue.num_seated, queue.least, queue.accounts.floor),
    ]


@pytest.mark.parametrize("seed", range(30))
def test_it_is_as_if_everybody_had_stood_in_the_queue(seed: int) -> None:
    given = {"reserved_seats": seed % 3, "prefix_quantum_tokens": 500 * (seed % 2), "max_queued": 12, "max_queued_per_tenant": 5}
    num_seats = 4 + seed % 5
    quick, plain = Bench(num_seats, **given), Bench(num_seats, **given)
    plain.queue = FairQueue(
        num_seats, plain.queue._settings, plain.timer.clock, plain.figures, Nobody(), call_later=plain.timer.call_later
    )
    quick_places: list[list[Place]] = []
    plain_places: list[list[Place]] = []
    chances = random.Random(seed), random.Random(seed)
    for _ in range(200):
        assert step(plain, chances[0], plain_places) == step(quick, chances[1], quick_places)
