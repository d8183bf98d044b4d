"""Floods of wrong keys: who keeps sending them waits for each answer.

Role: beside authentication. A client that waits asks less often, whatever it costs us to refuse it.
Invariant: only answers to wrong keys wait, so a valid key of the same address is never slower for them; what is remembered
and what waits are bounded.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from server.clock import Clock

PAUSE_S: Final = 2.0
PAUSED_INTERVAL_S: Final = 0.002
MAX_PAUSING: Final = 8192
MAX_ADDRESSES: Final = 8192
ADDRESS_BURST: Final = 50
ADDRESS_INTERVAL_S: Final = 0.5
ALL_BURST: Final = 200
ALL_INTERVAL_S: Final = 0.01


class WrongKeys:
    """Brakes wrong keys beyond a burst: of 50 from one address, which may send 2 a second, or of 200 from all, 100 a second.

    Answers that wait go out one by one, 500 a second at most: those that came together would else be due together, and all
    others behind them. `wait`: sleeps for so many seconds.
    """

    def __init__(self, clock: Clock, *, wait: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._clock = clock
        self._wait = wait
        self._due_s: OrderedDict[str, float] = OrderedDict()  # address -> when its burst is whole again
        self._all_due_s = 0.0
        self._last_end_s = 0.0  # of the pauses so far
        self.num_pausing = 0

    async def pause(self, address: str) -> bool:
        """Wait for as long as the answer to a wrong key from `address` must. False: too many wait; hang up instead."""
        if not self._is_too_often(network_of(address)):
            return True
        if self.num_pausing >= MAX_PAUSING:
            return False
        self.num_pausing += 1
        now_s = self._clock.monotonic_s()
        self._last_end_s = max(self._last_end_s + PAUSED_INTERVAL_S, now_s + PAUSE_S)
        try:
            await self._wait(self._last_end_s - now_s)
        finally:
            self.num_pausing -= 1
        return True

    def _is_too_often(self, address: str) -> bool:
        """Count one wrong key. What is refused anyway is not counted against later ones."""
        now_s = self._clock.monotonic_s()
        due_s, is_too_often = _counted(self._due_s.pop(address, 0.0), now_s, ADDRESS_INTERVAL_S, ADDRESS_BURST)
        self._due_s[address] = due_s
        if len(self._due_s) > MAX_ADDRESSES:
            self._due_s.popitem(last=False)
        self._all_due_s, are_too_many = _counted(self._all_due_s, now_s, ALL_INTERVAL_S, ALL_BURST)
        return is_too_often or are_too_many


def _counted(due_s: float, now_s: float, interval_s: float, burst: int) -> tuple[float, bool]:
    """When the burst is whole again after one more, and whether that one is beyond it."""
    next_s = max(due_s, now_s) + interval_s
    most_s = (burst + 0.001) * interval_s  # sums of intervals are not exact
    return (due_s, True) if next_s - now_s > most_s else (next_s, False)


def network_of(address: str) -> str:
    """Whom an address stands for: itself, or the /64 network of an IPv6 address, of which a client has all."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(parsed.ipv4_mapped or ipaddress.IPv6Address(int(parsed) >> 64 << 64))
