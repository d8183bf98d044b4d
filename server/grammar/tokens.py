"""Sets of tokens that are matched by their ids -> rules of the notation.

Role: the compiler keeps masks from one grammar to the next, by a hash over the shape of each rule, in which a set of tokens is
where it stands in its grammar's list of ids, not which ids it has. Two grammars that differ in a set alone, of one tenant or of
two, would be given each other's masks.
Invariant: in all grammars over one vocabulary a set has a rule of its own, with as many times the same alternative as no other
set has. The rules stand first, in one order, and are never put in where they are used, so that masks of whatever refers to them
are kept as well.
Source: measurements with xgrammar 0.2.8, which puts a rule in where it begins a sequence, unless it refers to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_NOTHING: Final = "none"


class TokenRules:
    """The rules of one grammar."""

    def __init__(self, first: Sequence[frozenset[int]], further: Sequence[int]) -> None:
        """`first`: sets that most grammars have. All others are of `further` tokens, few: each more doubles the longest rule."""
        self._rank_of: dict[frozenset[int], int] = {}
        self._bit_of = {token_id: 1 << position for position, token_id in enumerate(further)}
        for each in first:
            self._rank_of.setdefault(each, len(self._rank_of) + 1)
        self._num_first = len(self._rank_of)

    def name(self, *token_ids: int) -> str:
        """The rule of this set."""
        each = frozenset(token_ids)
        if each not in self._rank_of:
            self._rank_of[each] = self._num_first + sum(self._bit_of[token_id] for token_id in each)
        return f"t{self._rank_of[each]}"

    def lines(self) -> list[str]:
        """All that have been named, and the first."""
        ranks = sorted((rank, each) for each, rank in self._rank_of.items())
        return [f'{_NOTHING} ::= ""', *(_rule(each, rank) for rank, each in ranks)]


def _rule(token_ids: frozenset[int], times: int) -> str:
    one = f"Token({', '.join(map(str, sorted(token_ids)))}) {_NOTHING}"
    return f"t{times} ::= {' | '.join([one] * times)}"
