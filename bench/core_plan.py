"""What a fake engine core does, told while it runs.

Role: a page of memory that who measures shares with the cores: one start of the servers serves all measurements. The other way
goes the number of tokens that have arrived, by which a core in another process knows when to go on: it must not run ahead of a
server that is measured at full speed, which would then be given many tokens at once.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

KINDS: Final = ("text", "reasoning", "tools")
_PLAN: Final = struct.Struct("<dqqq")
_DELIVERED_AT: Final = 64
_DELIVERED: Final = struct.Struct("<q")
_SIZE: Final = 4096


class Plan(NamedTuple):
    """`steps_per_s` 0: as fast as it goes. `kind`: what is said, an index of `KINDS`. `most_tokens`: a request gets no more for
    now, and stays open; 0 for all that it asked for."""

    steps_per_s: float = 0.0
    tokens_per_step: int = 1
    kind: int = 0
    most_tokens: int = 0


class CorePlan:
    """The page, in a file."""

    def __init__(self, path: Path) -> None:
        with open(path, "r+b" if path.exists() else "w+b") as file:
            file.truncate(_SIZE)
            self._page = mmap.mmap(file.fileno(), _SIZE)

    def set(self, plan: Plan) -> None:
        """From the next step on."""
        _PLAN.pack_into(self._page, 0, *plan)

    @property
    def reader(self) -> Callable[[], tuple[float, int, int, int]]:
        """What returns the plan, as cheaply as a core that looks at each step needs it."""
        page, unpack_from = self._page, _PLAN.unpack_from
        return lambda: unpack_from(page, 0)

    @property
    def num_delivered(self) -> int:
        """Tokens that have arrived at the client."""
        found: int = _DELIVERED.unpack_from(self._page, _DELIVERED_AT)[0]
        return found

    @num_delivered.setter
    def num_delivered(self, number: int) -> None:
        _DELIVERED.pack_into(self._page, _DELIVERED_AT, number)
