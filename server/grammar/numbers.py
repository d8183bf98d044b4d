"""Ranges of numbers -> automata over their digits.

Invariant: numbers are written as JSON does, without an exponent where a range is asked for; `-0` is left out. Nothing is computed
with decimals, which would round bounds to 28 digits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Final

from server.grammar import automaton, characters, regex
from server.grammar.automaton import Automaton, TooLargeError
from server.grammar.characters import CharSet

_MAX_DIGITS: Final = 40
_MAX_MODULUS: Final = 200


@dataclass(frozen=True, slots=True)
class Bound:
    """An end of a range. `open`: the value itself is outside."""

    value: Decimal
    open: bool = False


def number(low: Bound | None, high: Bound | None, *, integer: bool, digits: int | None) -> Automaton:
    """Numbers between two bounds. `digits`: at most so many before and behind the point. Raises `TooLargeError`."""
    if low is None and high is None:
        whole = f"(?:0|-?[1-9]{_times(None if digits is None else digits - 1)})"
        if integer:
            return regex.compiled(f"^{whole}$")
        small = rf"-0\.{_times(None if digits is None else digits - 1)}[1-9]"
        return regex.compiled(rf"^(?:{whole}{_any_fraction(integer, digits)}|{small})(?:[eE][+-]?[0-9]{{1,2}})?$")
    if integer:
        low, high = _whole(low, ROUND_CEILING, 1), _whole(high, ROUND_FLOOR, -1)
    positive = _unsigned(low if low and low.value >= 0 else Bound(Decimal(0)), high, integer, digits)
    negative = _unsigned(
        Bound(high.value.copy_negate(), high.open) if high and high.value < 0 else Bound(Decimal(0), open=True),
        Bound(low.value.copy_negate(), low.open) if low else None,
        integer,
        digits,
    )
    return automaton.union(positive, automaton.behind(characters.of("-"), negative))


def multiples(modulus: int) -> Automaton:
    """Integers that are multiples of `modulus`, leading zeros not looked at. Raises `TooLargeError`."""
    if modulus > _MAX_MODULUS:
        raise TooLargeError("a modulus")

    def edges(state: int) -> Iterable[tuple[CharSet, int]]:
        if state < 0:
            yield characters.of("-"), modulus
        for digit in range(10):
            yield characters.of(str(digit)), (max(state, 0) * 10 + digit) % modulus

    return automaton.explored(-1, edges, lambda state: state == 0)


def _whole(bound: Bound | None, rounding: str, step: int) -> Bound | None:
    """The nearest integer inside of the bound."""
    if bound is None:
        return None
    value = bound.value.to_integral_value(rounding)
    return Bound(Decimal(int(value) + step) if bound.open and value == bound.value else value)


def _unsigned(low: Bound, high: Bound | None, integer: bool, digits: int | None) -> Automaton:
    """Numbers without a sign from `low`, which is not negative, to `high`."""
    if high is not None and (high.value < low.value or high.value < 0):
        return automaton.NOTHING
    for bound in (low, high):
        if bound is not None and len(_written(bound.value)) > _MAX_DIGITS:
            raise TooLargeError("a bound")
    found = regex.compiled(f"^(?:{'|'.join(_at_least(low, integer, digits))})$")
    if high is None:
        return found
    return automaton.intersection(found, regex.compiled(f"^(?:{'|'.join(_at_most(high, integer, digits) or ['(?!)'])})$"))


def _at_least(low: Bound, integer: bool, digits: int | None) -> list[str]:
    whole, fraction = _split(low.value)
    any_fraction = _any_fraction(integer, digits)
    longer = "" if digits is None else str(max(digits - 1, len(whole)))
    options = [rf"[1-9][0-9]{{{len(whole)},{longer}}}{any_fraction}"]
    for position, digit in enumerate(whole):
        if digit < "9":
            options.append(f"{whole[:position]}[{chr(ord(digit) + 1)}-9][0-9]{{{len(whole) - position - 1}}}{any_fraction}")
    if integer:
        return [*options, *([] if low.open else [whole])]
    if not fraction:
        return [*options, rf"{whole}\.{_times(_left(digits, 1))}[1-9]" if low.open else f"{whole}{any_fraction}"]
    for position, digit in enumerate(fraction):
        if digit < "9":
            options.append(rf"{whole}\.{fraction[:position]}[{chr(ord(digit) + 1)}-9]{_times(_left(digits, position + 1))}")
    more = _times(_left(digits, len(fraction) + 1)) + "[1-9]" if low.open else _times(_left(digits, len(fraction)))
    options.append(rf"{whole}\.{fraction}{more}")
    return options


def _at_most(high: Bound, integer: bool, digits: int | None) -> list[str]:
    whole, fraction = _split(high.value)
    any_fraction = _any_fraction(integer, digits)
    options: list[str] = []
    if len(whole) > 1:
        options.append(rf"(?:0|[1-9][0-9]{{0,{len(whole) - 2}}}){any_fraction}")
    for position, digit in enumerate(whole):
        first = "1" if position == 0 and len(whole) > 1 else "0"
        if digit > first:
            rest = len(whole) - position - 1
            options.append(f"{whole[:position]}[{first}-{chr(ord(digit) - 1)}][0-9]{{{rest}}}{any_fraction}")
    if integer or not fraction:
        if not high.open:
            options.append(whole if integer else rf"{whole}(?:\.0{{1,{digits or ''}}})?")
        return options
    options.append(whole)
    for position, digit in enumerate(fraction):
        if position:
            options.append(rf"{whole}\.{fraction[:position]}")
        if digit > "0":
            options.append(rf"{whole}\.{fraction[:position]}[0-{chr(ord(digit) - 1)}]{_times(_left(digits, position + 1))}")
    if not high.open:
        options.append(rf"{whole}\.{fraction}0{{0,{_left(digits, len(fraction)) if digits is not None else ''}}}")
    return options


def _split(value: Decimal) -> tuple[str, str]:
    """Digits before and behind the point, without zeros at the end."""
    whole, _, fraction = _written(value).partition(".")
    return whole, fraction.rstrip("0")


def _written(value: Decimal) -> str:
    return format(value.copy_abs(), "f") if -50 < value.adjusted() < 50 else "0" * 100


def _any_fraction(integer: bool, digits: int | None) -> str:
    return "" if integer else rf"(?:\.[0-9]{{1,{digits or ''}}})?"


def _left(digits: int | None, used: int) -> int | None:
    return None if digits is None else max(0, digits - used)


def _times(most: int | None) -> str:
    return "[0-9]*" if most is None else f"[0-9]{{0,{most}}}"
