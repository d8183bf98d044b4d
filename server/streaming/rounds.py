"""Looking after many streams at a steady pace, by one timer for all of them.

Role: beside step 8 of a request, for what is to be noticed of a stream that says nothing. A timer for each stream would be made
anew all the time, and what the event loop keeps of old ones would be strewn over all memory, so that little of it could be given
back when the streams close.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

_MOST_SLOTS: Final = 64
_FEWEST_SLOTS: Final = 4
_SHORTEST_TICK_S: Final = 0.02


class Member(Protocol):
    """Who is looked after."""

    def look(self) -> None:
        """A round has come here. Must not block."""


class Rounds:
    """Has each member `look` once every `interval_s`, not all at a time."""

    def __init__(self, interval_s: float) -> None:
        num_slots = max(_FEWEST_SLOTS, min(_MOST_SLOTS, int(interval_s / _SHORTEST_TICK_S)))
        self._tick_s = interval_s / num_slots
        self._slots: list[set[Member]] = [set() for _ in range(num_slots)]
        self._slot_of: dict[Member, set[Member]] = {}
        self._now = 0
        self._timer: asyncio.TimerHandle | None = None

    def join(self, member: Member) -> None:
        """From now on, the first time after `interval_s`, a tick less at most. Who is there already begins again."""
        self.leave(member)
        slot = self._slot_of[member] = self._slots[self._now]
        slot.add(member)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def leave(self, member: Member) -> None:
        """No more of it. Who is not there may leave, too."""
        slot = self._slot_of.pop(member, None)
        if slot is not None:
            slot.remove(member)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._tick_s, self._tick) if self._slot_of else None
        self._now = (self._now + 1) % len(self._slots)
        slot = self._slots[self._now]
        for member in list(slot):
            try:
                if member in slot:  # else it has left because of another
                    member.look()
            except Exception as error:  # noqa: BLE001 - nobody else is to be missed for it
                loop.call_exception_handler({"message": "a stream could not be looked after", "exception": error})
