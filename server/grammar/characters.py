"""Sets of characters, as sorted ranges of code points.

Role: the alphabet of `automaton`. A set is a tuple of (first, last), in order, neither overlapping nor touching.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CharSet = tuple[tuple[int, int], ...]

ANY: Final[CharSet] = ((0x01, 0xD7FF), (0xE000, 0x10FFFF))
"""All that text is made of: no surrogates, which have no UTF-8, and no U+0000, which ends strings too early in many places."""


def charset(*ranges: tuple[int, int]) -> CharSet:
    """The set of all `ranges`, in any order, as far as they are in `ANY`."""
    return _intersected(_merged(ranges), ANY)


def of(characters: str) -> CharSet:
    """The set of the characters in a string."""
    return charset(*((ord(character), ord(character)) for character in characters))


def union(*sets: CharSet) -> CharSet:
    """Characters in any of `sets`."""
    return _merged([pair for one in sets for pair in one])


def complement(one: CharSet) -> CharSet:
    """Characters of `ANY` that are not in `one`."""
    return minus(ANY, one)


def minus(one: CharSet, other: CharSet) -> CharSet:
    """Characters in `one` and not in `other`."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in other:
        if low > start:
            gaps.append((start, low - 1))
        start = high + 1
    gaps.append((start, 0x10FFFF))
    return _intersected(one, tuple(gaps))


def intersection(one: CharSet, other: CharSet) -> CharSet:
    """Characters in both."""
    return _intersected(one, other)


def contains(one: CharSet, character: str) -> bool:
    """Whether `character` is in the set."""
    code = ord(character)
    return any(low <= code <= high for low, high in one)


def size(one: CharSet) -> int:
    """Number of characters."""
    return sum(high - low + 1 for low, high in one)


def sample(one: CharSet, preferred: str = "a0A ") -> str:
    """A character of a set that is not empty: the first of `preferred` that is in it, else its first."""
    return next((character for character in preferred if contains(one, character)), chr(one[0][0]))


def _merged(ranges: Iterable[tuple[int, int]]) -> CharSet:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def _intersected(one: CharSet, other: CharSet) -> CharSet:
    out: list[tuple[int, int]] = []
    left = right = 0
    while left < len(one) and right < len(other):
        low = max(one[left][0], other[right][0])
        high = min(one[left][1], other[right][1])
        if low <= high:
            out.append((low, high))
        if one[left][1] < other[right][1]:
            left += 1
        else:
            right += 1
    return tuple(out)
