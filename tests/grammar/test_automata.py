"""Patterns, formats and ranges as automata, against Python's own idea of them."""

from __future__ import annotations

import random
import re
from decimal import Decimal

import jsonschema_rs
import pytest

from server.grammar import automaton, formats, numbers, regex
from server.grammar.automaton import Automaton, TooLargeError
from server.grammar.guard import Guard
from server.grammar.numbers import Bound
from server.vocabulary.byte import ByteVocabulary

PATTERNS = (
    *(
        "a",
        "^a",
        "a$",
        "^a$",
        "^$",
        "",
        "a|b",
        "^(a|b)$",
        "^a*b+c?$",
        "^a{2,3}$",
        "^a{2,}$",
        "^[^a]$",
        "^.$",
        "^\\d+$",
        "^\\w-\\W$",
    ),
    *(
        "(?:ab)+",
        "^(?:a|ab)(?:c|bcd)$",
        "^[a-c-]+$",
        "x(?:^a)?",
        "a^b",
        "^\\s\\S$",
        "(?<name>a)b",
        "^(?=.*b)a",
        "^(?!ab)a",
        "(a$|b)c?",
    ),
)
ALPHABET = "aabbccxd-1_ \n.é"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_searched_for_as_python_does(pattern: str) -> None:
    rng = random.Random(pattern)
    found = regex.compiled(pattern)
    # Python's `$` also holds before a last line break, and its classes are Unicode's; JSON Schema's are neither.
    python = re.compile(pattern.replace("(?<n", "(?P<n").replace("$", "\\Z"), re.ASCII)
    texts = ["", *("".join(rng.choices(ALPHABET, k=rng.randint(0, 5))) for _ in range(400))]

    assert {text: python.search(text) is not None for text in texts} == {text: found.accepts(text) for text in texts}


@pytest.mark.parametrize("pattern", ["(a)\\1", "\\ba", "(?i)a", "a(?=b)", "(?<=a)b", "\\p{L}", "(", "a++", "[", "*", "(?>a)b"])
def test_what_no_automaton_holds_is_told(pattern: str) -> None:
    with pytest.raises((regex.UnsupportedError, TooLargeError)):
        regex.compiled(pattern)


def walk(one: Automaton, rng: random.Random) -> str:
    """A random text."""
    text, state = "", 0
    while not one.accepting[state] or (one.edges[state] and rng.random() < 0.7 and len(text) < 60):
        chars, state = rng.choice(one.edges[state])
        text += chr(rng.randint(*rng.choice(chars)))
        if len(text) > 200:
            return one.shortest()
    return text


@pytest.mark.parametrize("name", formats.PATTERNS)
def test_a_format_allows_what_a_validator_takes(name: str) -> None:
    rng = random.Random(name)
    found = regex.compiled(formats.PATTERNS[name])
    validator = jsonschema_rs.validator_for({"format": name}, validate_formats=True)

    for _ in range(200):
        text = walk(found, rng)
        assert found.accepts(text)
        assert validator.is_valid(text), text


def test_ranges_of_numbers() -> None:
    rng = random.Random(0)
    for _ in range(150):
        integer = rng.random() < 0.5
        low, high = (
            Bound(Decimal(rng.randint(-300, 300)) / 10 ** rng.randrange(3), rng.random() < 0.4) if rng.random() < 0.8 else None
            for _ in range(2)
        )
        found = numbers.number(low, high, integer=integer, digits=rng.choice((None, 6)))
        for _ in range(40):
            value = Decimal(rng.randint(-4000, 4000)) / 10 ** rng.choice((0, 1, 2))
            for bound in (low, high):
                value = bound.value if bound and rng.random() < 0.2 else value
            value = value.to_integral_value() if integer else value
            value = abs(value) if value == 0 else value
            text = format(value, "f").split(".")[0] if integer else format(value, "f")
            above = low is None or value > low.value or (value == low.value and not low.open)
            below = high is None or value < high.value or (value == high.value and not high.open)
            assert (above and below) == found.accepts(text), (low, high, integer, text)


@pytest.mark.parametrize("sign", [1, -1])
def test_bounds_of_many_digits_are_exact(sign: int) -> None:
    value = sign * 12_345_678_901_234_567_890_123_456_789_012
    above = numbers.number(Bound(Decimal(value), open=True), None, integer=True, digits=None)
    below = numbers.number(None, Bound(Decimal(value), open=True), integer=True, digits=None)

    assert [False, False, True] == [above.accepts(str(value + more)) for more in (-1, 0, 1)]
    assert [True, False, False] == [below.accepts(str(value + more)) for more in (-1, 0, 1)]


@pytest.mark.parametrize("digits", [None, 4])
def test_numbers_without_a_range(digits: int | None) -> None:
    found = numbers.number(None, None, integer=False, digits=digits)

    assert [] == [text for text in ("0", "-7", "0.25", "-0.5", "1e5", "12E-3", "9999") if not found.accepts(text)]
    assert [] == [
        text for text in ("-0", "00", "01", "1.", ".5", "+1", "-", "1e", "-0.0", "-0.5.3", "1e999", "") if found.accepts(text)
    ]


def test_automata_are_combined_exactly() -> None:
    even, short = regex.compiled("^(?:aa|b)*$"), automaton.lengths(1, 3)
    texts = ["", "b", "aa", "a", "aab", "aaaa", "bbb", "c"]

    def those(one: Automaton) -> list[str]:
        return [text for text in texts if one.accepts(text)]

    assert ["b", "aa", "aab", "bbb"] == those(automaton.intersection(even, short))
    assert ["", "aaaa"] == those(automaton.difference(even, short))
    assert ["", "b", "aa", "a", "aab", "aaaa", "bbb", "c"] == those(automaton.union(even, short))
    assert automaton.intersection(even, automaton.words(["a"])).empty
    assert "" == even.shortest()


def test_what_grows_without_end_is_stopped() -> None:
    with pytest.raises(TooLargeError):
        regex.compiled("(a|b)*a(a|b){30}")
    with pytest.raises(TooLargeError):
        automaton.lengths(0, 10**9)
    with pytest.raises(TooLargeError):
        automaton.words(str(number) for number in range(10**6))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("plain", ["plain"]),
        ("a<b", ["a<b"]),
        ("a<|close|>", ["a", "<", "|close|>"]),
        ("<", ["<"]),
        ("<<|", ["<", "<", "|"]),
        ("[1]", ["[1]"]),
        ("[EOS]", ["[", "EOS]"]),
        ("<os", ["<", "os"]),
    ],
)
def test_names_of_control_tokens_are_cut_at_their_first_character(text: str, parts: list[str]) -> None:
    vocabulary = ByteVocabulary()
    found = Guard(vocabulary).parts(text)

    assert parts == [vocabulary.decode([part]) if isinstance(part, int) else part for part in found]
    assert all(isinstance(part, int) for part in found if part in (ord("<"), ord("[")))
    assert text == "".join(parts)


def test_a_bracket_of_json_needs_no_guard() -> None:
    guard = Guard(ByteVocabulary())

    assert ["["] == guard.parts("[", syntax=True)
    assert [ord("[")] == guard.parts("[")
