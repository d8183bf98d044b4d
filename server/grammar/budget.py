"""What making one grammar may cost.

Role: one thread makes the grammars of all tenants, so that no schema may keep it long. Counted and not measured, so that
a busy machine makes the same grammars.
"""

from __future__ import annotations

from typing import Final

MAX_WORK: Final = 360_000
"""For one grammar, in microseconds of a usual core, roughly."""

MAX_PART_WORK: Final = 180_000
"""For one tool, or the response: one that is made to hurt leaves something to the others."""


class SpentError(Exception):
    """A budget has nothing left: what was to be made might fit into another grammar. Never leaves this package."""


class Budget:
    """An amount that is spent. Without a limit for what is made just now (see `allow`) it may be overdrawn."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._allowed: int | None = None

    def allow(self, most: int | None) -> None:
        """Let what follows spend so much, within what is left for all; None: as much as it needs."""
        self._allowed = most

    def spend(self, amount: int) -> None:
        """Take `amount` off. Raises `SpentError` where that is more than is allowed."""
        self._left -= amount
        if self._allowed is not None:
            self._allowed -= amount
            if self._allowed < 0 or self._left < 0:
                raise SpentError("a grammar")
