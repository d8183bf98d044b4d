"""How much the engine can bear: fewer seats while its KV cache is full, and after it had to throw requests out.

Role: asked by the queue at every decision; looks at the engine's own figures. Invariant: one request may always run.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

from server.clock import Clock

LASTING_S: Final = 5.0
RECOVERY_S: Final = 1.0
"""How long nothing may go wrong before seats come back: one in 64 of all, and one at least."""

_MAX_BETWEEN_LOOKS_S: Final = 1.0
_FLEX: Final = 2


class EngineFigures(Protocol):
    """What is read of `server.engine.base.EngineStats`."""

    @property
    def kv_cache_usage(self) -> float:
        """0..1, as of the last step."""
        ...

    @property
    def num_preemptions(self) -> int:
        """Requests thrown out for want of KV cache, to be computed again; total since the start."""
        ...


class Pressure:
    """Allows up to `num_seats` seats: after a preemption one less than there were, then more, step by step."""

    def __init__(self, num_seats: int, max_kv_cache_usage: float, stats: EngineFigures, clock: Clock) -> None:
        self._num_seats = num_seats
        self._max_kv_cache_usage = max_kv_cache_usage
        self._stats = stats
        self._clock = clock
        self._limit = num_seats
        self._num_preemptions = stats.num_preemptions
        self._is_full = False
        self._calm_since_s = self._looked_s = clock.monotonic_s()
        self._preempted_s = -math.inf
        self._pressed_since_s: float | None = None

    def look(self, num_seated: int) -> None:
        """Take notice of what the engine says, while `num_seated` requests run."""
        now_s = self._clock.monotonic_s()
        self._is_full = self._stats.kv_cache_usage > self._max_kv_cache_usage
        num_preemptions, before = self._stats.num_preemptions, self._num_preemptions
        self._num_preemptions = num_preemptions
        if num_preemptions > before:
            self._limit = max(1, min(self._limit, num_seated) - 1)
            self._preempted_s = now_s
        if self._is_full or num_preemptions > before:
            self._calm_since_s = now_s
        elif self._limit < self._num_seats and (num_steps := int((now_s - self._calm_since_s) / RECOVERY_S)):
            self._limit = min(self._num_seats, self._limit + num_steps * max(1, self._num_seats // 64))
            self._calm_since_s += num_steps * RECOVERY_S
        self._note_how_long(now_s, (self._is_full and num_seated > 0) or now_s - self._preempted_s < RECOVERY_S)

    def _note_how_long(self, now_s: float, is_pressed: bool) -> None:
        """Nobody looks while nothing waits: what was before a gap does not count as lasting."""
        if not is_pressed:
            self._pressed_since_s = None
        elif self._pressed_since_s is None or now_s - self._looked_s > _MAX_BETWEEN_LOOKS_S:
            self._pressed_since_s = now_s
        self._looked_s = now_s

    def num_allowed(self, num_seated: int) -> int:
        """How many seats may be taken, at the last look."""
        return max(1, min(self._limit, num_seated)) if self._is_full else self._limit

    def sheds(self, service_class: int) -> bool:
        """Whether a request of this class that would have to wait is better refused: flex at once, others when it lasts."""
        since_s = self._pressed_since_s
        return since_s is not None and (service_class >= _FLEX or self._looked_s - since_s > LASTING_S)
