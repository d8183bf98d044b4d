"""Deterministic automata over characters: every constraint on a string or a number's digits is one.

Role: patterns, formats, lengths, ranges and keys that must differ from others are automata of the same kind, so that any of them
can be combined exactly, and so that what is printed has one rule a state.
Invariant: state 0 is the start; every state can be reached and can still accept (`trimmed`), so an automaton without states
accepts nothing. The number of states is bounded by `MAX_STATES`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from server.grammar import characters
from server.grammar.characters import ANY, CharSet

MAX_STATES: Final = 1200
_MAX_MERGED: Final = 160

State = TypeVar("State", bound=Hashable)
Spend = Callable[[int], object]
"""Is told of work before it is done, in microseconds; raises where it is too much."""


class TooLargeError(Exception):
    """Something would take more room than a grammar may have. Never leaves this package."""


@dataclass(frozen=True, slots=True, eq=False)
class Automaton:
    """`edges[state]`: (characters, next state), the sets disjoint. `accepting[state]`: whether a text may end there.

    Two are equal only where they are the same (see `Library`).
    """

    edges: tuple[tuple[tuple[CharSet, int], ...], ...]
    accepting: tuple[bool, ...]

    @property
    def empty(self) -> bool:
        """Whether it accepts nothing."""
        return not self.edges

    def accepts(self, text: str) -> bool:
        """Whether it accepts all of `text`."""
        if self.empty:
            return False
        state: int | None = 0
        for character in text:
            edges = self.edges[state] if state is not None else ()
            state = next((target for chars, target in edges if characters.contains(chars, character)), None)
        return state is not None and self.accepting[state]

    def shortest(self) -> str:
        """A shortest text of an automaton that is not empty."""
        texts = {0: ""}
        queue = deque([0])
        while queue:
            state = queue.popleft()
            if self.accepting[state]:
                return texts[state]
            for chars, target in self.edges[state]:
                if target not in texts:
                    texts[target] = texts[state] + characters.sample(chars)
                    queue.append(target)
        raise ValueError("the automaton is empty")


NOTHING: Final = Automaton((), ())


def lengths(low: int, high: int | None, chars: CharSet = ANY) -> Automaton:
    """`low` to `high` of `chars`; None: no upper bound. Raises `TooLargeError`."""
    last = low if high is None else high
    if last < low:
        return NOTHING
    if last >= MAX_STATES:
        raise TooLargeError("a length")
    edges = [((chars, state + 1),) for state in range(last)]
    ends: tuple[tuple[CharSet, int], ...] = ((chars, last),) if high is None else ()
    return Automaton((*edges, ends), tuple(state >= low for state in range(last + 1)))


def words(texts: Iterable[str]) -> Automaton:
    """Exactly these texts. Raises `TooLargeError`."""
    children: list[dict[str, int]] = [{}]
    accepting = [False]
    for text in texts:
        state = 0
        for character in text:
            if character not in children[state]:
                if len(children) >= MAX_STATES:
                    raise TooLargeError("many words")
                children[state][character] = len(children)
                children.append({})
                accepting.append(False)
            state = children[state][character]
        accepting[state] = True
    edges = tuple(tuple((characters.of(character), target) for character, target in node.items()) for node in children)
    return trimmed(Automaton(edges, tuple(accepting)))


def intersection(one: Automaton, other: Automaton, spend: Spend = int) -> Automaton:
    """Texts of both. Raises `TooLargeError`."""
    if one.empty or other.empty:
        return NOTHING

    def edges(state: tuple[int, int]) -> Iterable[tuple[CharSet, tuple[int, int]]]:
        spend(_work_of_pairs(one.edges[state[0]], other.edges[state[1]]))
        for left, left_target in one.edges[state[0]]:
            for right, right_target in other.edges[state[1]]:
                if both := characters.intersection(left, right):
                    yield both, (left_target, right_target)

    return explored((0, 0), edges, lambda state: one.accepting[state[0]] and other.accepting[state[1]])


def union(one: Automaton, other: Automaton) -> Automaton:
    """Texts of either. Raises `TooLargeError`."""
    return _combined(one, other, lambda left, right: left or right)


def difference(one: Automaton, other: Automaton, spend: Spend = int) -> Automaton:
    """Texts of `one` that are not of `other`. Raises `TooLargeError`."""
    return _combined(one, other, lambda left, right: left and not right, spend)


def _combined(one: Automaton, other: Automaton, accepts: Callable[[bool, bool], bool], spend: Spend = int) -> Automaton:
    """Texts by whether each of the two accepts them. A state is one of each, None where that one has failed."""

    def edges(state: tuple[int | None, int | None]) -> Iterable[tuple[CharSet, tuple[int | None, int | None]]]:
        lefts = one.edges[state[0]] if state[0] is not None else ()
        rights = other.edges[state[1]] if state[1] is not None else ()
        spend(_work_of_pairs(lefts, rights))
        for left, left_target in lefts:
            rest = left
            for right, right_target in rights:
                if both := characters.intersection(left, right):
                    rest = characters.minus(rest, right)
                    yield both, (left_target, right_target)
            if rest:
                yield rest, (left_target, None)
        all_left = characters.union(*(chars for chars, _ in lefts))
        for right, right_target in rights:
            if rest := characters.minus(right, all_left):
                yield rest, (None, right_target)

    def accepting(state: tuple[int | None, int | None]) -> bool:
        left, right = state
        return accepts(left is not None and one.accepting[left], right is not None and other.accepting[right])

    return explored((None if one.empty else 0, None if other.empty else 0), edges, accepting)


def _work_of_pairs(lefts: Sequence[tuple[CharSet, int]], rights: Sequence[tuple[CharSet, int]]) -> int:
    """What it takes to look at each edge of one state beside each of another's."""
    num_left, num_right = sum(len(chars) for chars, _ in lefts), sum(len(chars) for chars, _ in rights)
    return 20 + num_left * (1 + len(rights)) + num_right * (1 + len(lefts))


def behind(chars: CharSet, one: Automaton) -> Automaton:
    """One of `chars`, then a text of `one`."""
    if one.empty:
        return one
    edges = tuple(tuple((edge, target + 1) for edge, target in state) for state in one.edges)
    return Automaton((((chars, 1),), *edges), (False, *one.accepting))


def restricted(one: Automaton, chars: CharSet) -> Automaton:
    """The texts of `one` that have no other characters than `chars`."""
    edges = tuple(
        tuple((kept, target) for edge, target in state if (kept := characters.intersection(edge, chars))) for state in one.edges
    )
    return one if edges == one.edges else trimmed(Automaton(edges, one.accepting))


def explored(
    start: State, edges: Callable[[State], Iterable[tuple[CharSet, State]]], accepting: Callable[[State], bool]
) -> Automaton:
    """The automaton of all states that can be reached from `start`, made small. Raises `TooLargeError`."""
    numbers = {start: 0}
    order = [start]
    table: list[tuple[tuple[CharSet, int], ...]] = []
    for state in order:
        targets: dict[int, list[CharSet]] = {}
        for chars, target in edges(state):
            if target not in numbers:
                if len(order) >= MAX_STATES:
                    raise TooLargeError("an automaton")
                numbers[target] = len(order)
                order.append(target)
            targets.setdefault(numbers[target], []).append(chars)
        table.append(tuple((characters.union(*sets), target) for target, sets in targets.items()))
    return merged(trimmed(Automaton(tuple(table), tuple(accepting(state) for state in order))))


def trimmed(one: Automaton) -> Automaton:
    """`one` without states from which nothing is accepted."""
    sources: list[list[int]] = [[] for _ in one.edges]
    for state, edges in enumerate(one.edges):
        for _, target in edges:
            sources[target].append(state)
    alive = {state for state, accepts in enumerate(one.accepting) if accepts}
    queue = list(alive)
    while queue:
        for source in sources[queue.pop()]:
            if source not in alive:
                alive.add(source)
                queue.append(source)
    if 0 not in alive:
        return NOTHING
    return _renumbered(one, [state if state in alive else None for state in range(len(one.edges))])


def merged(one: Automaton) -> Automaton:
    """`one` with states that accept the same texts made one, found from the coarsest partition on.

    A large one is left as it is: long chains, which it mostly is, take as many rounds as states and have nothing to merge.
    """
    if len(one.edges) > _MAX_MERGED:
        return one
    if one.empty:
        return one
    groups: list[int] = [int(accepts) for accepts in one.accepting]
    num_groups = len(set(groups))
    while True:
        keys: dict[object, int] = {}
        refined: list[int] = []
        for state, edges in enumerate(one.edges):
            targets: dict[int, CharSet] = {}
            for chars, target in edges:
                group = groups[target]
                targets[group] = characters.union(targets[group], chars) if group in targets else chars
            key = (groups[state], frozenset(targets.items()))
            refined.append(keys.setdefault(key, len(keys)))
        groups = refined
        if len(keys) == num_groups:
            break
        num_groups = len(keys)
    first: dict[int, int] = {}
    for state, group in enumerate(groups):
        first.setdefault(group, state)
    return _renumbered(one, [first[group] for group in groups])


def _renumbered(one: Automaton, becomes: Sequence[int | None]) -> Automaton:
    """`one` with each state replaced by the one it becomes (None: dropped); those that become themselves are kept, in order."""
    kept = [state for state, other in enumerate(becomes) if other == state]
    numbers = {state: number for number, state in enumerate(kept)}
    table: list[tuple[tuple[CharSet, int], ...]] = []
    for state in kept:
        targets: dict[int, list[CharSet]] = {}
        for chars, target in one.edges[state]:
            if (other := becomes[target]) is not None:
                targets.setdefault(numbers[other], []).append(chars)
        table.append(tuple((characters.union(*sets), target) for target, sets in targets.items()))
    return Automaton(tuple(table), tuple(one.accepting[state] for state in kept))
