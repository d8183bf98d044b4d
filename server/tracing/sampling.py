"""Which requests are traced.

Invariant: a tenant has no more traces than the operator's ratio gives, and `tracing.client_samples_per_minute` beside them: the
flag in a client's `traceparent` asks for one, and the choice of its trace id asks for nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Final

from server.clock import Clock
from server.sections import TracingSettings
from server.tracing.trace import Parent

NOBODYS_A_MINUTE: Final = 60
"""Traces of requests without a right key; anybody can send any number of them."""


class Sampler:
    """Decides for one gateway. `chance`: where random numbers come from."""

    def __init__(self, settings: TracingSettings, clock: Clock, chance: random.Random | None = None) -> None:
        self._ratio = settings.sample_ratio
        self._most_asked_for = settings.client_samples_per_minute
        self._clock = clock
        self._chance = chance or random.Random()
        self._minute = 0
        self._num_asked_for: Counter[str] = Counter()

    def decide(self, tenant: str | None, parent: Parent | None) -> bool:
        """Whether a request is traced. `tenant`: None where nobody is known to have sent it.

        A client that says that its own trace is not sampled gets none here. Called once a request.
        """
        if tenant is None:
            return self._by_chance() and self._has_more("", NOBODYS_A_MINUTE)
        if parent is None:
            return self._by_chance()
        return parent.is_sampled and (self._has_more(tenant, self._most_asked_for) or self._by_chance())

    def _by_chance(self) -> bool:
        # Not by the trace id, as is usual: clients choose that.
        return self._chance.random() < self._ratio

    def _has_more(self, name: str, most: int) -> bool:
        minute = int(self._clock.monotonic_s() // 60)
        if minute != self._minute:
            self._minute = minute
            self._num_asked_for.clear()
        if self._num_asked_for[name] >= most:
            return False
        self._num_asked_for[name] += 1
        return True
