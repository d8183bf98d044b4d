"""Automata that come up again and again, made once.

Role: belongs to one factory. Invariant: asked twice, it gives the same object, so that equal words print as one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from server.grammar import automaton, numbers, regex
from server.grammar.automaton import Automaton, TooLargeError
from server.grammar.budget import Budget
from server.grammar.characters import CharSet
from server.grammar.numbers import Bound
from server.grammar.regex import UnsupportedError

MAX_KEPT: Final = 1000
MAX_NEW_STATES: Final = 8000
"""For one grammar."""

_WORK_OF_STATE: Final = 80
_WORK_OF_NUMBER: Final = 250  # a state: it is put together from many automata


class Library:
    """Bounded: what was not asked for the longest goes first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Automaton | None] = OrderedDict()
        self._num_new_states = 0
        self._work = Budget(0)

    def begin(self, work: Budget) -> None:
        """Another grammar is made.

        What it needs beyond `work` raises `SpentError`, beyond `MAX_NEW_STATES` `TooLargeError`.
        """
        self._num_new_states = 0
        self._work = work

    def pattern(self, pattern: str) -> Automaton | None:
        """The texts in which a regular expression is found, None where there is no automaton for it."""

        def make() -> Automaton | None:
            try:
                return regex.compiled(pattern, self._work.spend)
            except (UnsupportedError, TooLargeError):
                return None

        return self._get(("pattern", pattern), make)

    def lengths(self, low: int, high: int | None, chars: CharSet) -> Automaton:
        """As `automaton.lengths`. Raises `TooLargeError`."""
        return self._found(("lengths", low, high, chars), lambda: automaton.lengths(low, high, chars), cheap=True)

    def number(
        self, low: Bound | None, high: Bound | None, steps: tuple[int, ...], *, integer: bool, digits: int | None
    ) -> Automaton:
        """As `numbers.number`, multiples of all `steps`. Raises `TooLargeError`."""

        def make() -> Automaton:
            found = numbers.number(low, high, integer=integer, digits=digits)
            for step in steps:
                found = automaton.intersection(found, numbers.multiples(step), self._work.spend)
            return found

        cheap = low is None and high is None and not steps
        return self._found(("number", low, high, steps, integer, digits), make, cheap=cheap, work=_WORK_OF_NUMBER)

    def both(self, one: Automaton, other: Automaton) -> Automaton:
        """As `automaton.intersection`. Raises `TooLargeError`."""
        return self._found(("both", one, other), lambda: automaton.intersection(one, other, self._work.spend))

    def without(self, one: Automaton, other: Automaton) -> Automaton:
        """As `automaton.difference`. Raises `TooLargeError`."""
        return self._found(("without", one, other), lambda: automaton.difference(one, other, self._work.spend))

    def other_words(self, one: Automaton, texts: Sequence[str]) -> Automaton:
        """The texts of `one` but for `texts`. Raises `TooLargeError`."""
        key = ("words", one, tuple(texts))
        return self._found(key, lambda: automaton.difference(one, automaton.words(texts), self._work.spend))

    def restricted(self, one: Automaton, chars: CharSet) -> Automaton:
        """As `automaton.restricted`. Never too large, so that what holds nothing can always be made."""
        return self._found(("restricted", one, chars), lambda: automaton.restricted(one, chars), cheap=True)

    def _found(
        self, key: Hashable, make: Callable[[], Automaton], *, cheap: bool = False, work: int = _WORK_OF_STATE
    ) -> Automaton:
        found = self._get(key, make, cheap=cheap, work=work)
        assert found is not None
        return found

    def _get(
        self, key: Hashable, make: Callable[[], Automaton | None], *, cheap: bool = False, work: int = _WORK_OF_STATE
    ) -> Automaton | None:
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if self._num_new_states > MAX_NEW_STATES and not cheap:
            raise TooLargeError("automata")
        try:
            found = make()
        except TooLargeError:
            self._num_new_states += automaton.MAX_STATES
            raise
        if not cheap:
            self._num_new_states += automaton.MAX_STATES if found is None else len(found.edges)
            self._work.spend(work * (1 if found is None else len(found.edges)))
        self._kept[key] = found
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return found
