"""Regular expressions of schemas -> automata.

Role: `pattern` of JSON Schema, which is ECMAScript's dialect and is searched for, not matched: without `^` and `$` anything may
stand around it. Python's own parser reads it, as far as the two dialects mean the same.
Raises `UnsupportedError` for what no automaton of ours holds: references to groups, looks to the sides (but for those that begin
an anchored pattern), word boundaries, flags, classes by Unicode property.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

from server.grammar import automaton, characters
from server.grammar.automaton import Automaton, Spend, TooLargeError
from server.grammar.characters import ANY, CharSet, charset

_MAX_CHARS: Final = 2000
_MAX_NFA_STATES: Final = 4000
_MAX_REACHED: Final = 100_000
"""States of an NFA, each as often as it is reached while its automaton is made; some 300 ms."""

_DIGITS: Final = charset((0x30, 0x39))
_WORD: Final = charset((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Final = charset(
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
    *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
_LINE_ENDS: Final = characters.of("\n\r\u2028\u2029")
_UNDISPUTED: Final = characters.complement(charset((0x85, 0x85), (0x180E, 0x180E), (0xFEFF, 0xFEFF)))
"""Without the characters that are white space to some and not to others: no text that is matched here has them."""

_CATEGORIES: Final = {
    codes.CATEGORY_DIGIT: _DIGITS,
    codes.CATEGORY_NOT_DIGIT: characters.complement(_DIGITS),
    codes.CATEGORY_WORD: _WORD,
    codes.CATEGORY_NOT_WORD: characters.complement(_WORD),
    codes.CATEGORY_SPACE: _SPACE,
    codes.CATEGORY_NOT_SPACE: characters.complement(_SPACE),
}
_ALWAYS, _AT_START, _AT_END = range(3)


class UnsupportedError(Exception):
    """The expression is none, or can't be held. Never leaves this package."""


def compiled(pattern: str, spend: Spend = int) -> Automaton:
    """All texts in which `pattern` is found. Raises `UnsupportedError` and `TooLargeError`."""
    items = _parsed(pattern)
    looks: list[tuple[bool, Any]] = []
    if items and items[0] == (codes.AT, codes.AT_BEGINNING):
        while len(items) > 1 and items[1][0] in (codes.ASSERT, codes.ASSERT_NOT) and items[1][1][0] == 1:
            looks.append((items[1][0] == codes.ASSERT, items[1][1][1]))
            del items[1]
    whole = _automaton(items, spend)
    for wanted, look in looks:
        found = _automaton([items[0], *look], spend)
        whole = (automaton.intersection if wanted else automaton.difference)(whole, found, spend)
    return automaton.restricted(whole, _UNDISPUTED)


def _parsed(pattern: str) -> list[Any]:
    if len(pattern) > _MAX_CHARS:
        raise TooLargeError("a pattern")
    dialect = re.sub(r"\(\?<(?=[A-Za-z_])", "(?P<", pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of what may be read otherwise in future
            tree = parser.parse(dialect)
    except (re.error, Warning, OverflowError, RecursionError, ValueError) as error:
        raise UnsupportedError(str(error)) from None
    if tree.state.flags & ~re.UNICODE.value:
        raise UnsupportedError("flags")
    return list(tree)


class _Nfa:
    """States with edges on characters and free ones, which may hold at the text's start or end only."""

    def __init__(self, spend: Spend) -> None:
        self._spend = spend
        self.steps: list[list[tuple[CharSet, int]]] = []
        self.free: list[list[tuple[int, int]]] = []
        self._num_reached = 0

    def state(self) -> int:
        if len(self.steps) >= _MAX_NFA_STATES:
            raise TooLargeError("a pattern")
        self.steps.append([])
        self.free.append([])
        return len(self.steps) - 1

    def sequence(self, items: Iterable[Any], start: int) -> int:
        """Add `items` behind `start`; returns the state behind them."""
        for item in items:
            start = self.item(item, start)
        return start

    def item(self, item: Any, start: int) -> int:
        op, value = item
        if op in (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN):
            return self.step(_charset(op, value), start)
        if op == codes.SUBPATTERN:
            _, add_flags, del_flags, items = value
            if add_flags or del_flags:
                raise UnsupportedError("flags")
            return self.sequence(items, start)
        if op == codes.BRANCH:
            end = self.state()
            for branch in value[1]:
                self.free[self.sequence(branch, start)].append((_ALWAYS, end))
            return end
        if op in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            low, high, items = value
            return self.repeat(items, low, None if high == codes.MAXREPEAT else high, start)
        if op == codes.AT and value in (codes.AT_BEGINNING, codes.AT_END):
            end = self.state()
            self.free[start].append((_AT_START if value == codes.AT_BEGINNING else _AT_END, end))
            return end
        raise UnsupportedError(str(op))

    def step(self, chars: CharSet, start: int) -> int:
        end = self.state()
        self.steps[start].append((chars, end))
        return end

    def repeat(self, items: Sequence[Any], low: int, high: int | None, start: int) -> int:
        for _ in range(low):
            before, start = start, self.sequence(items, start)
            if start == before:  # nothing, however often: repeats of repeats of it would never end
                return start
        if high is None:
            loop = self.state()
            self.free[start].append((_ALWAYS, loop))
            self.free[self.sequence(items, loop)].append((_ALWAYS, loop))
            return loop
        end = self.state()
        self.free[start].append((_ALWAYS, end))
        for _ in range(high - low):
            before, start = start, self.sequence(items, start)
            if start == before:
                break
            self.free[start].append((_ALWAYS, end))
        return end

    def closure(self, states: Iterable[tuple[int, bool]], *, at_start: bool) -> frozenset[tuple[int, bool]]:
        """With every state that is reached freely. The flag of a state: the text must have ended here.

        Raises `TooLargeError` where the expression has taken too long already.
        """
        found = set(states)
        queue = list(found)
        while queue:
            state, ended = queue.pop()
            for condition, target in self.free[state]:
                if condition == _AT_START and not at_start:
                    continue
                reached = (target, ended or condition == _AT_END)
                if reached not in found:
                    found.add(reached)
                    queue.append(reached)
        self._num_reached += len(found)
        self._spend(10 + 3 * len(found))
        if self._num_reached > _MAX_REACHED:
            raise TooLargeError("a pattern")
        return frozenset(found)


def _automaton(items: Sequence[Any], spend: Spend) -> Automaton:
    """All texts in which the parsed expression is found."""
    nfa = _Nfa(spend)
    start = nfa.state()
    nfa.steps[start].append((ANY, start))
    end = nfa.sequence(items, start)
    last = nfa.state()
    nfa.free[end].append((_ALWAYS, last))
    nfa.steps[last].append((ANY, last))

    def edges(states: frozenset[tuple[int, bool]]) -> Iterable[tuple[CharSet, frozenset[tuple[int, bool]]]]:
        steps = [step for state, ended in states if not ended for step in nfa.steps[state]]
        for chars, targets in _partition(steps):
            # Once found, nothing that follows matters.
            closed = nfa.closure([(target, False) for target in targets], at_start=False)
            yield chars, frozenset({(last, False)}) if (last, False) in closed else closed

    first = nfa.closure([(start, False)], at_start=True)
    return automaton.explored(first, edges, lambda states: any(state == last for state, _ in states))


def _partition(steps: Sequence[tuple[CharSet, int]]) -> Iterable[tuple[CharSet, frozenset[int]]]:
    """Disjoint sets of characters, each with the states that its characters lead to."""
    changes: dict[int, list[tuple[bool, int]]] = {}
    for number, (chars, _) in enumerate(steps):
        for low, high in chars:
            changes.setdefault(low, []).append((True, number))
            changes.setdefault(high + 1, []).append((False, number))
    groups: dict[frozenset[int], list[tuple[int, int]]] = {}
    active: set[int] = set()
    points = sorted(changes)
    for point, following in zip(points, [*points[1:], 0], strict=True):
        for begins, number in changes[point]:
            (active.add if begins else active.discard)(number)
        if active:
            groups.setdefault(frozenset(steps[number][1] for number in active), []).append((point, following - 1))
    for targets, ranges in groups.items():
        yield charset(*ranges), targets


def _charset(op: Any, value: Any) -> CharSet:
    if op == codes.LITERAL:
        return charset((value, value))
    if op == codes.NOT_LITERAL:
        return characters.complement(charset((value, value)))
    if op == codes.ANY:
        return characters.complement(_LINE_ENDS)
    negated = False
    sets: list[CharSet] = []
    for kind, part in value:
        if kind == codes.NEGATE:
            negated = True
        elif kind == codes.LITERAL:
            sets.append(charset((part, part)))
        elif kind == codes.RANGE:
            sets.append(charset(part))
        elif kind == codes.CATEGORY and part in _CATEGORIES:
            sets.append(_CATEGORIES[part])
        else:
            raise UnsupportedError(str(kind))
    chars = characters.union(*sets)
    return characters.complement(chars) if negated else chars
