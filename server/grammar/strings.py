"""Constraints on strings -> automata.

Role: `pattern`, `format`, `minLength` and `maxLength` of a conjunction, and the names that further keys may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from server.grammar import automaton, characters, formats
from server.grammar.automaton import Automaton, TooLargeError
from server.grammar.characters import CharSet
from server.grammar.library import Library
from server.grammar.schema import Parts, integer

_MAX_STATES: Final = 400
_WIDE: Final = 1000
_IDENTIFIER: Final = characters.charset((0x24, 0x24), (0x2D, 0x2E), (0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))


@dataclass(frozen=True, slots=True)
class Text:
    """A constraint on a string. `free`: there is none but that it has `least` characters, none or one, and those of a cap."""

    automaton: Automaton
    least: int = 0
    free: bool = False


class Strings:
    """Reads the keywords of strings.

    `exact`, `counted`: see `Bounds`. `note` is told the path of what is not held.
    """

    def __init__(self, library: Library, note: Callable[[str], None], exact: int, counted: int) -> None:
        self._library = library
        self._note = note
        self._exact = exact
        self._counted = counted

    def text(self, parts: Parts, chars: CharSet, cap: int | None = None) -> Text:
        """What a string of `chars` must be to satisfy `parts`. `cap`: no longer than this, unless it has to be."""
        found = self.patterns(parts, chars)
        low, high = self.bounds(parts)
        if high is not None and high < low:
            return Text(automaton.NOTHING)
        if low > self._exact:
            self._note_all(parts, "minLength")
            low = 1
        cap = None if cap is None else max(cap, low)
        if found is not None:
            return Text(self._measured(found, low, high, cap, chars, parts))
        if high is not None and high > self._counted and cap is None:
            self._note_all(parts, "maxLength")
            high = None
        most = min((bound for bound in (high, cap) if bound is not None), default=None)
        return Text(self._library.lengths(low, most, chars), low, free=low <= 1 and high is None)

    def bounds(self, parts: Parts) -> tuple[int, int | None]:
        """The least and the most characters."""
        low = max((integer(part, "minLength", self._note) or 0 for part in parts), default=0)
        most = [high for part in parts if (high := integer(part, "maxLength", self._note)) is not None]
        return low, min(most, default=None)

    def patterns(self, parts: Parts, chars: CharSet) -> Automaton | None:
        """Patterns and formats, None where there are none."""
        found: Automaton | None = None
        for part in parts:
            kind = part.schema.get("format")
            known = formats.PATTERNS.get(kind) if isinstance(kind, str) else None
            for key, pattern in (("pattern", part.schema.get("pattern")), ("format", known)):
                if pattern is None or (one := self.compiled(pattern, part.below(key))) is None:
                    continue
                one = self._library.restricted(one, chars)
                narrowed = one if found is None else self.both(found, one)
                if narrowed is None or self._is_large(narrowed):
                    self._note(part.below(key))
                else:
                    found = narrowed
        return found

    def compiled(self, pattern: object, path: str) -> Automaton | None:
        """The automaton of a pattern, None and noted where it has none."""
        found = self._library.pattern(pattern) if isinstance(pattern, str) else None
        if found is None:
            self._note(path)
        return found

    def both(self, one: Automaton, other: Automaton) -> Automaton | None:
        """Texts of both, None where that takes too much room."""
        try:
            return self._library.both(one, other)
        except TooLargeError:
            return None

    def _measured(self, found: Automaton, low: int, high: int | None, cap: int | None, chars: CharSet, parts: Parts) -> Automaton:
        """`found` with a length, as far as that stays small."""
        if cap is not None and (high is None or high > cap):
            found = self.capped(found, cap, chars)
        if low:
            found = self._or_note(self._with_length(found, low, None, chars), found, parts, "minLength")
        if high is not None:
            narrowed = self._with_length(found, 0, high, chars)
            if narrowed is None and cap is not None:  # shorter than it need be, but not without end
                shorter = self.capped(found, min(cap, high), chars)
                narrowed = None if shorter is found else shorter
            found = self._or_note(narrowed, found, parts, "maxLength")
        return found

    def capped(self, found: Automaton, cap: int, chars: CharSet) -> Automaton:
        """Texts of `found` that are no longer than `cap`, or than may be counted without taking too much room.

        All of `found` where none of its texts is that short. Where many characters may come at many places, only identifiers are
        left, which are counted further.
        """
        narrow = self._library.restricted(found, _IDENTIFIER)
        candidates = [(self._countable(one, cap, room), one) for one in (found, narrow) if not one.empty for room in (4, 1)]
        for most, one in sorted(candidates, key=lambda item: -item[0]):
            capped = self._with_length(one, 0, most, chars)
            if capped is not None and not capped.empty:
                return capped
        return found

    def _countable(self, one: Automaton, cap: int, room: int) -> int:
        """How many characters may be counted, `cap` at most: each takes the states of `one` once more, but for those that come
        only at the beginning or the end, which is why there may be `room` for more."""
        return min(cap, room * _MAX_STATES // len(one.edges) - 1, self._exact // max(1, _num_wide(one)))

    def _or_note(self, narrowed: Automaton | None, found: Automaton, parts: Parts, key: str) -> Automaton:
        if narrowed is None:
            self._note_all(parts, key)
            return found
        return narrowed

    def _with_length(self, found: Automaton, low: int, high: int | None, chars: CharSet) -> Automaton | None:
        """`found` with a length, None where that takes too much room."""
        try:
            narrowed = self._library.both(found, self._library.lengths(low, high, chars))
        except TooLargeError:
            return None
        return None if self._is_large(narrowed) and len(narrowed.edges) > len(found.edges) else narrowed

    def _is_large(self, one: Automaton) -> bool:
        """Whether its masks take long to compute: where many characters may come, all tokens are tried."""
        return _num_wide(one) > self._exact + 1 or len(one.edges) > _MAX_STATES

    def _note_all(self, parts: Parts, key: str) -> None:
        for part in parts:
            if key in part.schema:
                self._note(part.below(key))


def _num_wide(one: Automaton) -> int:
    """How many states take many characters."""
    return sum(1 for edges in one.edges if sum(characters.size(chars) for chars, _ in edges) > _WIDE)


def other_names(
    declared: Iterable[str], patterns: Iterable[Automaton], names: Automaton | None, chars: CharSet, library: Library
) -> Automaton:
    """Names for further keys: none of those declared, of none of `patterns`, all of `names`. Raises `TooLargeError`.

    Where there is something to keep away from, they are identifiers, which keeps the automaton's masks small.
    """
    declared, patterns = list(declared), list(patterns)
    narrow = chars if not declared and not patterns else characters.intersection(chars, _IDENTIFIER)
    found = library.restricted(names, chars) if names is not None else library.lengths(1, None, narrow)
    if declared:
        found = library.other_words(found, declared)
    for pattern in patterns:
        found = library.without(found, pattern)
    return found
