"""Constraints on strings -> automata.

Role: `pattern`, `format`, `minLength` and `maxLength` of a conjunction, and the names that further keys may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from server.grammar import automaton, characters, formats, regex
from server.grammar.automaton import Automaton, TooLargeError
from server.grammar.characters import CharSet
from server.grammar.schema import Parts, integer

MAX_EXACT: Final = 64
"""Lengths up to this are counted by an automaton, which costs a state each; beyond, by the grammar compiler."""

_MAX_HELD: Final = 1_000_000_000
_MAX_PRODUCT: Final = 400
_IDENTIFIER: Final = characters.charset((0x24, 0x24), (0x2D, 0x2E), (0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))


@dataclass(frozen=True, slots=True)
class Text:
    """A constraint on a string. `most_chars`: a bound that the automaton does not have in it. `free`: there is none."""

    automaton: Automaton
    least: int = 0
    most_chars: int | None = None
    free: bool = False


def text(parts: Parts, chars: CharSet, note: Callable[[str], None]) -> Text:
    """What a string of `chars` must be to satisfy `parts`; what can't be held is noted."""
    found = _patterns(parts, chars, note)
    low, high = 0, None
    for part in parts:
        low = max(low, integer(part, "minLength", note) or 0)
        if (most := integer(part, "maxLength", note)) is not None:
            high = most if high is None else min(high, most)
    if high is not None and high < low:
        return Text(automaton.NOTHING)
    if found is None and low <= 1 and high is None:
        return Text(automaton.lengths(low, None, chars), low, free=True)
    if low > MAX_EXACT:
        _note_all(parts, "minLength", note)
        low = 1
    if high is not None and high > _MAX_HELD:
        _note_all(parts, "maxLength", note)
        high = None
    return _measured(found, low, high, chars, parts, note)


def _measured(
    found: Automaton | None, low: int, high: int | None, chars: CharSet, parts: Parts, note: Callable[[str], None]
) -> Text:
    """`found` with a length, by the automaton where that stays small."""
    if found is None:
        exact = high if high is not None and high <= MAX_EXACT else None
        return Text(automaton.lengths(low, exact, chars), low, None if exact is not None else high)
    if low == 0 and high is None:
        return Text(found)
    try:
        if high is not None and high > _MAX_PRODUCT:
            raise TooLargeError("a length")
        both = automaton.intersection(found, automaton.lengths(low, high, chars))
        if len(both.edges) <= max(_MAX_PRODUCT, len(found.edges)):
            return Text(both)
    except TooLargeError:
        pass
    try:
        found = automaton.intersection(found, automaton.lengths(low, None, chars))
    except TooLargeError:
        _note_all(parts, "minLength", note)
    return Text(found, 0, high)


def _patterns(parts: Parts, chars: CharSet, note: Callable[[str], None]) -> Automaton | None:
    found: Automaton | None = None
    for part in parts:
        patterns = [("pattern", part.schema.get("pattern"))]
        kind = part.schema.get("format")
        patterns.append(("format", formats.PATTERNS.get(kind) if isinstance(kind, str) else None))
        for key, pattern in patterns:
            if pattern is None:
                continue
            one = compiled(pattern, part.below(key), note)
            if one is not None:
                one = automaton.restricted(one, chars)
                try:
                    found = one if found is None else automaton.intersection(found, one)
                except TooLargeError:
                    note(part.below(key))
    return found


def compiled(pattern: object, path: str, note: Callable[[str], None]) -> Automaton | None:
    """The automaton of a pattern, None and noted where it has none."""
    try:
        if isinstance(pattern, str):
            return regex.compiled(pattern)
    except (regex.UnsupportedError, TooLargeError):
        pass
    note(path)
    return None


def other_names(declared: Iterable[str], patterns: Iterable[Automaton], names: Automaton | None, chars: CharSet) -> Automaton:
    """Names for further keys: none of those declared, of none of `patterns`, all of `names`. Raises `TooLargeError`.

    Where there is something to keep away from, they are identifiers, which keeps the automaton's masks small.
    """
    declared, patterns = list(declared), list(patterns)
    narrow = chars if not declared and not patterns else characters.intersection(chars, _IDENTIFIER)
    found = automaton.restricted(names, chars) if names is not None else automaton.lengths(1, None, narrow)
    if declared:
        found = automaton.difference(found, automaton.words(declared))
    for pattern in patterns:
        found = automaton.difference(found, pattern)
    return found


def _note_all(parts: Parts, key: str, note: Callable[[str], None]) -> None:
    for part in parts:
        if key in part.schema:
            note(part.below(key))


def both(one: Automaton, other: Automaton) -> Automaton:
    """Texts of both, or where that takes too much room, those of `one`."""
    try:
        return automaton.intersection(one, other)
    except TooLargeError:
        return one
