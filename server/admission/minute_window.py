"""What one tenant took in the last 60 seconds.

Invariant: in no 60 seconds is more counted than was allowed to be: the time is cut into slots, and a slot leaves the window
when the whole of it is older than that. So everything is counted for 60 seconds and up to one slot more, and steady use gets
480/481 of a limit. O(1) amortised: every slot is entered once and left once.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from server.admission.limits import WINDOW_S, Four

SLOTS_PER_S: Final = 8
_NUM_SLOTS: Final = WINDOW_S * SLOTS_PER_S


class Slot:
    """An eighth of a second, and what was counted in it, by kind. `is_live`: it is in the window still."""

    __slots__ = ("amounts", "is_live", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.amounts = [0, 0, 0, 0]
        self.is_live = True


class MinuteWindow:
    """The window of one tenant. `roll` first: everything else looks at the window as it was rolled last."""

    __slots__ = ("_slots", "totals")

    def __init__(self) -> None:
        self.totals = [0, 0, 0, 0]
        self._slots: deque[Slot] = deque()

    def roll(self, now_s: float) -> None:
        """Let go of what is older than the window. `now_s` never goes back."""
        slots = self._slots
        oldest = int(now_s * SLOTS_PER_S) - _NUM_SLOTS
        while slots and slots[0].number < oldest:
            slot = slots.popleft()
            slot.is_live = False
            for kind, amount in enumerate(slot.amounts):
                self.totals[kind] -= amount

    def now(self, now_s: float) -> Slot:
        """The slot of now."""
        number = int(now_s * SLOTS_PER_S)
        if self._slots and self._slots[-1].number >= number:
            return self._slots[-1]
        slot = Slot(number)
        self._slots.append(slot)
        return slot

    def add(self, slot: Slot, kind: int, amount: int) -> None:
        """Count `amount` more, or less, in `slot`, as long as that is in the window."""
        if slot.is_live:
            slot.amounts[kind] += amount
            self.totals[kind] += amount

    def enter(self, slot: Slot, amounts: Four) -> None:
        """Count a request in `slot`, which is the one of now."""
        totals, of_slot = self.totals, slot.amounts
        for kind in range(4):
            of_slot[kind] += amounts[kind]
            totals[kind] += amounts[kind]

    def wait_s(self, kind: int, excess: int, now_s: float) -> float:
        """When `excess` of `kind` will have left the window, in seconds from now."""
        for slot in self._slots:
            excess -= slot.amounts[kind]
            if excess <= 0:
                return _leaves_s(slot) - now_s
        return float(WINDOW_S)

    def full_in_s(self, now_s: float) -> float:
        """When the window will be empty, if nothing more comes."""
        return _leaves_s(self._slots[-1]) - now_s if self._slots else 0.0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in the window."""
        return not self._slots


def _leaves_s(slot: Slot) -> float:
    return (slot.number + _NUM_SLOTS + 1) / SLOTS_PER_S
