"""Token ids of texts that were encoded before, so that the next turn of a long conversation costs little more than what is new.

Role: beside `segments.py`. A text's token ids depend on the text alone, so an entry is right wherever the text comes again: in
the next turn, behind an edit, in another conversation with the same system prompt.
Invariants: an entry is found by a digest of the whole text, 256 bits that nobody can make two texts agree in, and within one
cache group only: how long a prompt takes says nothing of what others sent. All entries together take at most `most_bytes`. Who
keeps the most makes room first, so that no group can empty another's share.
Must not: keep lists. The garbage collector would look at each of their tokens, again and again; a tuple of numbers it forgets.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from hashlib import blake2b
from typing import Final

MIN_CHARS: Final = 64
"""Of a text that is kept. Encoding a shorter one takes hardly longer than looking it up, 2 µs."""

ENTRY_BYTES: Final = 320
"""What an entry takes beside its tokens: the digest, the tuple's head, its place in the table."""

TOKEN_BYTES: Final = 8


class _Group:
    """The entries of one cache group, the least recently used first."""

    __slots__ = ("entries", "num_bytes")

    def __init__(self) -> None:
        self.entries: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()
        self.num_bytes = 0


class KnownTexts:
    """All groups' entries. May be used from several threads at once."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._groups: dict[str, _Group] = {}
        self._num_bytes = 0
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """What the entries take, by our own account."""
        return self._num_bytes

    @property
    def most_bytes(self) -> int:
        """The bound."""
        return self._most_bytes

    def of(self, group: str) -> GroupTexts | None:
        """What `group`, a name that only one cache group has, may see; None where nothing is kept at all."""
        return GroupTexts(self, group) if group and self._most_bytes else None

    def get(self, name: str, digest: bytes) -> tuple[int, ...] | None:
        """The entry of group `name`, which is the most recently used one then."""
        with self._lock:
            group = self._groups.get(name)
            if group is None or (found := group.entries.get(digest)) is None:
                return None
            group.entries.move_to_end(digest)
            return found

    def put(self, name: str, digest: bytes, token_ids: tuple[int, ...]) -> None:
        """Keep an entry. One that would take more than half of the room is not kept."""
        size = _size(token_ids)
        if 2 * size > self._most_bytes:
            return
        with self._lock:
            group = self._groups.get(name)
            if group is not None and digest in group.entries:  # another thread was faster
                return
            if self._num_bytes + size > self._most_bytes:
                self._make_room(size)
            group = self._groups.setdefault(name, _Group())  # its last entry may just have gone
            group.entries[digest] = token_ids
            group.num_bytes += size
            self._num_bytes += size

    def _make_room(self, size: int) -> None:
        """Drop the oldest entries of whoever keeps the most, until `size` more bytes fit."""
        while self._num_bytes + size > self._most_bytes:
            name, largest = max(self._groups.items(), key=lambda item: item[1].num_bytes)
            # Not one by one: with many groups it takes a while to find the largest.
            enough = largest.num_bytes * 7 // 8
            while largest.entries and self._num_bytes + size > self._most_bytes and largest.num_bytes >= enough:
                _, dropped = largest.entries.popitem(last=False)
                largest.num_bytes -= _size(dropped)
                self._num_bytes -= _size(dropped)
            if not largest.entries:
                del self._groups[name]


class GroupTexts:
    """One cache group's part of `KnownTexts`."""

    __slots__ = ("_all", "_name")

    def __init__(self, known: KnownTexts, name: str) -> None:
        self._all = known
        self._name = name

    def digest(self, text: str) -> bytes:
        """What `text` is found by. Other threads run meanwhile where it is long."""
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).digest()

    def get(self, digest: bytes) -> tuple[int, ...] | None:
        """Token ids of the text with that digest, shape (num_tokens,); None where they are not known."""
        return self._all.get(self._name, digest)

    def put(self, digest: bytes, token_ids: tuple[int, ...]) -> None:
        """Remember them."""
        self._all.put(self._name, digest, token_ids)


def _size(token_ids: tuple[int, ...]) -> int:
    return ENTRY_BYTES + TOKEN_BYTES * len(token_ids)
