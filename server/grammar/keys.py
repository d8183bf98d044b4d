"""Keys in any order, none twice, and the required ones among them.

Role: arguments of a call and members of a JSON object are the same problem: a set of named things, each at most once.
How: one rule for each set of keys that was written, up to `any_order` keys; above that the keys come sorted, which is the order
in which the prompt shows them. Where `any_order` is None they come as they are declared, which is what clients are promised of
answers. Further keys come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from server.grammar.nodes import EMPTY, NOTHING, Node, Repeat, Rules, choice, sequence

MAX_COUNTED: Final = 40
"""More keys than these are not counted."""


@dataclass(frozen=True, slots=True)
class Member:
    """A key and its value, as written."""

    key: str
    node: Node
    required: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands around members. `extra`: a further member, None where there may be none, at most `most_extra` of them."""

    close: Node
    separator: Node = EMPTY
    extra: Node | None = None
    most_extra: int | None = None


def members(rules: Rules, given: Sequence[Member], layout: Layout, low: int, high: int | None, any_order: int | None) -> Node:
    """All ways to write `low` to `high` of the members and the close; None: no upper bound."""
    usable = [member for member in given if member.node != NOTHING]
    if sum(member.required for member in usable) < sum(member.required for member in given):
        return NOTHING
    if any_order is not None:
        usable.sort(key=lambda member: member.key)
    writer = _Writer(rules, usable, layout, low, high)
    return writer.in_any_order() if any_order is not None and len(usable) <= any_order else writer.in_order()


class _Writer:
    def __init__(self, rules: Rules, given: Sequence[Member], layout: Layout, low: int, high: int | None) -> None:
        self._rules = rules
        self._members = given
        self._layout = layout
        self._low = low
        self._high = high
        self._next = [rules.add("m", sequence(layout.separator, member.node)) for member in self._members]

    def in_any_order(self) -> Node:
        everything = (1 << len(self._members)) - 1
        required = sum(1 << index for index, member in enumerate(self._members) if member.required)
        behind: dict[int, Node] = {}
        for written in range(everything, -1, -1):
            options: list[Node] = []
            count = written.bit_count()
            if self._high is None or count < self._high:
                for index, member in enumerate(self._members):
                    if not written >> index & 1:
                        node = self._next[index] if written else member.node
                        options.append(sequence(node, behind[written | 1 << index]))
            if written & required == required:
                options.append(self._end(count))
            behind[written] = self._rules.add("k", choice(options))
        return behind[0]

    def in_order(self) -> Node:
        counted = (self._low > 0 or self._high is not None) and len(self._members) <= MAX_COUNTED
        if not counted:
            self._low, self._high = 0, None
            if self._layout.separator == EMPTY:
                optional = (member.node if member.required else choice([member.node, EMPTY]) for member in self._members)
                return sequence(*optional, self._end(0))
        last = len(self._members)
        counts = range(last + 1) if counted else range(2)  # whether any, where the number makes no difference
        behind = [self._rules.add("k", self._end(count)) for count in counts]
        for index in range(last - 1, -1, -1):
            member = self._members[index]
            before: list[Node] = []
            for count in counts:
                node = self._next[index] if count else member.node
                full = count >= last or (self._high is not None and count >= self._high)
                more = NOTHING if counted and full else sequence(node, behind[min(count + 1, counts[-1])])
                before.append(self._rules.add("k", choice([more] if member.required else [more, behind[count]])))
            behind = before
        return behind[0]

    def _end(self, count: int) -> Node:
        """Behind `count` members: further ones, and the close."""
        layout = self._layout
        low = max(0, self._low - count)
        high = None if self._high is None else self._high - count
        if layout.extra is None:
            return NOTHING if low or (high is not None and high < 0) else layout.close
        if layout.most_extra is not None:
            high = max(low, layout.most_extra) if high is None else min(high, max(low, layout.most_extra))
        if high is not None and high < low:
            return NOTHING
        if high == 0:
            return layout.close
        following = self._rules.add("m", sequence(layout.separator, layout.extra))
        if count or layout.separator == EMPTY:
            return sequence(Repeat(following, low, high), layout.close)
        first = sequence(layout.extra, Repeat(following, max(0, low - 1), None if high is None else high - 1), layout.close)
        return choice([first] if low else [layout.close, first])
