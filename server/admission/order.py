"""Whose turn it is, among the tenants that wait.

Role: the queue tells who waits and who was served; this answers who is next, in O(log tenants).
Invariant: the least counter comes first. A tenant may be served before it only to use a prefix while it is in the cache, and only
while its counter is ahead by less than the quantum.
Must not: know seats or time.
Source: Virtual Token Counter ("Fairness in Serving Large Language Models", OSDI'24); the deficit quantum of DLPM
(arXiv 2501.14312).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Final

from server.admission.place import Account, Place
from server.admission.service import UNIT

NUM_HOT_PREFIXES: Final = 256
_MIN_STALE: Final = 64


class Standing:
    """Accounts that wait, least counter first, then in order of their heads' arrival.

    Counters may go up unseen: an account that looks too far ahead is moved when it comes to the top. One that went down is `put`
    again.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Account]] = []
        self._puts: dict[Account, int] = {}
        self._num_puts = 0

    def __contains__(self, account: Account) -> bool:
        return account in self._puts

    def put(self, account: Account, head: Place) -> None:
        """Add it, or move it to where it belongs now."""
        self._num_puts += 1
        self._puts[account] = self._num_puts
        heapq.heappush(self._heap, (account.counter, head.serial, self._num_puts, account))
        if len(self._heap) > 2 * len(self._puts) + _MIN_STALE:
            self._heap = [entry for entry in self._heap if self._puts.get(entry[3]) == entry[2]]
            heapq.heapify(self._heap)

    def discard(self, account: Account) -> None:
        """Take it out, if it is in."""
        self._puts.pop(account, None)

    def least(self) -> tuple[int, int, Account] | None:
        """Counter, arrival of the head, and the account that they put first."""
        heap = self._heap
        while heap:
            counter, serial, put, account = heap[0]
            if self._puts.get(account) != put:
                heapq.heappop(heap)
            elif counter != account.counter:
                heapq.heapreplace(heap, (account.counter, serial, put, account))
            else:
                return counter, serial, account
        return None


class HotPrefixes:
    """The prefixes of the requests seated last: the engine's cache has them, as far as we can know. The oldest go first."""

    def __init__(self, most: int = NUM_HOT_PREFIXES) -> None:
        self._most = most
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def add(self, key: bytes) -> bytes | None:
        """Use `key`. Returns the one that this pushed out."""
        self._keys[key] = None
        self._keys.move_to_end(key)
        return self._keys.popitem(last=False)[0] if len(self._keys) > self._most else None


class Order:
    """All tenants that wait. `light` ones hold fewer than `num_light_seats` seats.

    `quantum_tokens`: for how many tokens of service a tenant may be served out of turn; 0 for none.
    """

    def __init__(self, num_light_seats: int, quantum_tokens: int) -> None:
        self._num_light_seats = num_light_seats
        self._quantum = quantum_tokens * UNIT
        self._light, self._heavy = Standing(), Standing()
        self._hot_light, self._hot_heavy = Standing(), Standing()
        self._hot = HotPrefixes()
        self._by_prefix: dict[bytes, set[Account]] = {}
        self._prefixes: dict[Account, bytes] = {}

    def file(self, account: Account) -> None:
        """Something of `account` has changed: who waits first, how many seats it holds, or its counter, downwards."""
        head = account.head
        prefix = head.prefix_key if head is not None else b""
        if prefix != self._prefixes.get(account, b""):
            self._note(account, prefix)
        if head is None:
            for standing in (self._light, self._heavy, self._hot_light, self._hot_heavy):
                standing.discard(account)
            return
        is_light = account.num_seated < self._num_light_seats
        here, there = (self._light, self._heavy) if is_light else (self._heavy, self._light)
        hot_here, hot_there = (self._hot_light, self._hot_heavy) if is_light else (self._hot_heavy, self._hot_light)
        here.put(account, head)
        there.discard(account)
        hot_there.discard(account)
        if prefix in self._hot:
            hot_here.put(account, head)
        else:
            hot_here.discard(account)

    def served(self, prefix: bytes) -> None:
        """A request with this prefix was seated; those that share it may now be preferred."""
        if not prefix or not self._quantum:
            return
        was_hot = prefix in self._hot
        pushed_out = self._hot.add(prefix)
        if not was_hot:
            self._file_all(prefix)
        if pushed_out is not None:
            self._file_all(pushed_out)

    def next(self) -> Account | None:
        """Who is to be served."""
        return self._preferred(_first(self._light, self._heavy), _first(self._hot_light, self._hot_heavy))

    def next_light(self) -> Account | None:
        """Who is to be served among the tenants that hold few seats, where one may be: see `admits`."""
        light = _first(self._light, None)
        if light is None or not self.admits(light.counter):
            return None
        hot = _first(self._hot_light, None)
        return self._preferred(light, None if hot is None or not self.admits(hot.counter) else hot)

    def admits(self, counter: int) -> bool:
        """Whether a tenant with few seats may be served before those with many.

        It may be ahead of them by what they were charged for the seats they hold: these are charged at once and used over time,
        so who is ahead by less still takes less than they do. Beyond that it would be given more than its share, for as
        long as its requests are short enough for few seats.
        """
        heavy = _first(None, self._heavy)
        return heavy is None or counter <= heavy.counter + heavy.at_stake

    def _preferred(self, first: Account | None, hot: Account | None) -> Account | None:
        """`hot`, where its prefix is worth its being served out of turn."""
        if first is None or hot is None or (hot.counter - first.counter) * hot.weight > self._quantum:
            return first
        return hot

    @property
    def least(self) -> int | None:
        """The least counter of those that wait; None where nobody does."""
        first = _first(self._light, self._heavy)
        return None if first is None else first.counter

    def _note(self, account: Account, prefix: bytes) -> None:
        """Remember which prefix `account` waits with; empty for none."""
        if before := self._prefixes.pop(account, None):
            sharing = self._by_prefix[before]
            sharing.remove(account)
            if not sharing:
                del self._by_prefix[before]
        if prefix:
            self._prefixes[account] = prefix
            self._by_prefix.setdefault(prefix, set()).add(account)

    def _file_all(self, prefix: bytes) -> None:
        for account in tuple(self._by_prefix.get(prefix, ())):
            self.file(account)


def _first(light: Standing | None, heavy: Standing | None) -> Account | None:
    """The better of two."""
    first = None if light is None else light.least()
    other = None if heavy is None else heavy.least()
    if first is None or (other is not None and other[:2] < first[:2]):
        first = other
    return None if first is None else first[2]
