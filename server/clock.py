"""Time as a dependency, so that tests own it.

Role: the one place that reads a clock. `monotonic_s` measures durations, `unix_s` stamps what clients and ledgers see.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def monotonic_s(self) -> float:
        """Seconds that never go back, for durations."""
        ...

    def unix_s(self) -> int:
        """Whole seconds since 1970, for time stamps."""
        ...

    def unix_ms(self) -> int:
        """Milliseconds since 1970."""
        ...


class SystemClock:
    """The machine's clock."""

    monotonic_s = staticmethod(time.monotonic)  # itself, not a call of ours around it: it is read three times a token

    def unix_s(self) -> int:
        return int(time.time())

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000


@dataclass(slots=True)
class ManualClock:
    """A clock that moves only when told to."""

    now_s: float = 1_000_000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> int:
        return int(self.now_s)

    def unix_ms(self) -> int:
        return round(self.now_s * 1000)

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`."""
        self.now_s += seconds
