"""What a schema leaves open ends where small models are bounded: no pattern, format, number or key goes on for ever."""

from __future__ import annotations

from decimal import Decimal
from itertools import product

import jsonschema_rs
import pytest

from server.grammar import formats
from server.grammar.automaton import Automaton
from server.grammar.budget import Budget
from server.grammar.characters import ANY
from server.grammar.library import Library
from server.grammar.numbers import Bound, number
from server.grammar.schema import Part
from server.grammar.strings import Strings

CAP = 96


def is_endless(one: Automaton) -> bool:
    """Whether a path leads from a state back to it; in an automaton every state can still accept."""
    state_of = [0] * len(one.edges)  # 0 not seen, 1 on the path, 2 done
    stack = [(0, iter(one.edges[0]))]
    state_of[0] = 1
    while stack:
        state, edges = stack[-1]
        target = next((target for _, target in edges if state_of[target] != 2), None)
        if target is None:
            state_of[state] = 2
            stack.pop()
        elif state_of[target] == 1:
            return True
        else:
            state_of[target] = 1
            stack.append((target, iter(one.edges[target])))
    return False


def longest(one: Automaton) -> int:
    """Characters of the longest text of an automaton without circles."""
    state_of: dict[int, int] = {}

    def below(state: int) -> int:
        if state not in state_of:
            state_of[state] = max((1 + below(target) for _, target in one.edges[state]), default=0)
        return state_of[state]

    return below(0)


@pytest.mark.parametrize(
    "pattern",
    [*formats.PATTERNS.values(), r"^(0|[1-9]\d*)\.(0|[1-9]\d*)$", r"\.(png|jpe?g)$", "cat|dog", "^sk-", r"^\S+\s\S+$", "^<.*>$"],
)
def test_patterns_end(pattern: str) -> None:
    library = Library()
    found = library.pattern(pattern)
    assert found is not None
    capped = Strings(library, pytest.fail, exact=64, counted=256).capped(library.restricted(found, ANY), CAP, ANY)
    assert not is_endless(capped)
    assert found.accepts(capped.shortest())
    assert len(capped.shortest()) == len(found.shortest())


@pytest.mark.parametrize("high", [None, 5, 20, 60, 64, 65, 300])
@pytest.mark.parametrize("low", [None, 0, 4])
@pytest.mark.parametrize("patterns", [(), ("[0-9]",), ("[0-9]", "[a-z]"), ("[0-9]", "[a-z]", "[A-Z]"), (r"^\S+@\S+$", "x")])
def test_texts_end_whatever_they_are_held_to(patterns: tuple[str, ...], low: int | None, high: int | None) -> None:
    lengths = {key: value for key, value in (("minLength", low), ("maxLength", high)) if value is not None}
    parts = (Part(lengths, "s"), *(Part({"pattern": pattern}, "s") for pattern in patterns))
    noted: list[str] = []
    text = Strings(Library(), noted.append, exact=64, counted=256).text(parts, ANY, CAP)

    assert not text.automaton.empty
    assert not is_endless(text.automaton)
    assert len(text.automaton.shortest()) >= (low or 0)
    if high is not None and not noted:
        assert longest(text.automaton) <= high
    if not patterns:
        assert [] == noted


@pytest.mark.parametrize("cap", [None, 0, 1, 5, 10])
@pytest.mark.parametrize(("exact", "counted"), [(4, 8), (4, 4), (6, 3)])
@pytest.mark.parametrize("pattern", [None, "^a*$", "^a{2}", "^a{7}"])
def test_lengths_are_held_or_noted(pattern: str | None, exact: int, counted: int, cap: int | None) -> None:
    for low, high in product((None, 0, 1, 4, 5, 9), (None, 0, 1, 3, 4, 5, 8, 9, 12)):
        keywords = {"minLength": low, "maxLength": high, "pattern": pattern}
        part = Part({key: value for key, value in keywords.items() if value is not None}, "s")
        noted: list[str] = []
        library = Library()
        library.begin(Budget(10**9))
        text = Strings(library, noted.append, exact, counted).text((part,), ANY, cap)
        validator = jsonschema_rs.validator_for(part.schema)
        fitting = {"a" * length for length in range(14) if validator.is_valid("a" * length)}
        taken = {"a" * length for length in range(14) if text.automaton.accepts("a" * length)}
        assert noted or taken <= fitting, (part, taken)
        assert noted or cap is not None or taken == fitting, (part, taken)
        assert taken or not fitting, part


def test_a_pattern_that_is_longer_than_the_cap_stays() -> None:
    library = Library()
    found = library.pattern("^[a-z]{100,}$")
    assert found is not None
    assert found is Strings(library, pytest.fail, exact=64, counted=256).capped(found, CAP, ANY)


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize(
    "low",
    [
        None,
        Bound(Decimal("0"), True),
        Bound(Decimal("0")),
        Bound(Decimal("-3.5"), True),
        Bound(Decimal("0.125"), True),
        Bound(Decimal("7.0000000001"), True),
    ],
)
@pytest.mark.parametrize("high", [None, Bound(Decimal("9.5"), True), Bound(Decimal("10"))])
def test_numbers_end(low: Bound | None, high: Bound | None, integer: bool) -> None:
    found = number(low, high, integer=integer, digits=8)
    assert not found.empty
    assert not is_endless(found)
