"""Work that may be large, spread over turns of the event loop, so that many who have some at once keep nobody else waiting.

Role: bottom layer, for what runs on the loop because it is quick, and is not when a hundred come at once.
Must not: delay what comes alone, or reorder what waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class LoopTurns:
    """At most `most_bytes` of work in `every` turns of the loop, or one piece where that is larger; what is beyond waits in line.

    The turns are counted from the first piece on.

    Others mostly need several turns for what they do, one after the other. With work in only one turn of many they wait for it
    once, not in each of theirs.
    """

    def __init__(self, most_bytes: int, *, every: int = 1) -> None:
        self._most_bytes = most_bytes
        self._every = every
        self._num_bytes = 0
        self._num_turns_left = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def do(self, num_bytes: int, work: Callable[[], None]) -> bool:
        """Do `work`, which costs as much as so many bytes, now or in a later turn; whether it is done."""
        if self._waiting or (self._num_bytes and self._num_bytes + num_bytes > self._most_bytes):
            self._waiting.append((num_bytes, work))
            return False
        if not self._num_turns_left:
            self._begin()
        self._num_bytes += num_bytes
        work()
        return True

    def _begin(self) -> None:
        self._num_bytes = 0
        self._num_turns_left = self._every
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._num_turns_left -= 1
        if self._num_turns_left:
            asyncio.get_running_loop().call_soon(self._next_turn)
            return
        self._num_bytes = 0
        if self._waiting:
            self._begin()
        while self._waiting and (not self._num_bytes or self._num_bytes + self._waiting[0][0] <= self._most_bytes):
            num_bytes, work = self._waiting.popleft()
            self._num_bytes += num_bytes
            work()
