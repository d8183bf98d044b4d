"""Stop strings: the answer ends where one of them begins.

Role: between a parser and `streaming/`. Content only: a stop string inside reasoning or arguments is just text.
Invariant: what comes out does not depend on how the content was split; held back is only what may be the beginning of a stop
string; every character is looked at once, whatever the number of stop strings (Aho–Corasick).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from server.events import ContentDelta, Event


@dataclass(slots=True)
class _Automaton:
    """Prefixes of stop strings, by number; 0 is the empty one. Numbers, as objects that lead to each other outlive their request.

    `depths`: how long each is. `following`: which it is with one character more. `fails`: the longest other that it ends with.
    `found`: the longest stop string that it ends with.
    """

    depths: list[int] = field(default_factory=lambda: [0])
    following: list[dict[str, int]] = field(default_factory=lambda: [{}])
    fails: list[int] = field(default_factory=lambda: [0])
    found: list[str | None] = field(default_factory=lambda: [None])

    def add(self, depth: int) -> int:
        """One more prefix."""
        self.depths.append(depth)
        self.following.append({})
        self.fails.append(0)
        self.found.append(None)
        return len(self.depths) - 1

    def next(self, node: int, character: str) -> int:
        """The longest prefix that what `node` is, with `character` behind it, ends with."""
        while True:
            following = self.following[node].get(character)
            if following is not None:
                return following
            if not node:
                return 0
            node = self.fails[node]


class StopStrings:
    """Stop strings, ready to be searched for: made once a request, read by the filters of all its answers.

    A few milliseconds for the two thousand characters that a request may have.
    """

    __slots__ = ("automaton", "starts")

    def __init__(self, strings: Sequence[str]) -> None:
        """Empty ones are ignored."""
        strings = [string for string in strings if string]
        self.automaton = _automaton(strings)
        self.starts = re.compile(f"[{re.escape(''.join({string[0] for string in strings}))}]") if strings else None


class StopFilter:
    """Passes the events of one answer on until a stop string is complete.

    The stop string that is complete first wins; of those complete at the same character, the longest. Once `matched` is set the
    caller ends the generation with finish reason `stop`; whatever is filtered later vanishes.
    """

    __slots__ = ("_automaton", "_held", "_node", "_starts", "matched")

    def __init__(self, stop: StopStrings) -> None:
        self._automaton = stop.automaton
        self._starts = stop.starts
        self._node = 0
        self._held = ""
        self.matched: str | None = None

    def filter(self, events: Sequence[Event]) -> list[Event]:
        """The events to pass on, in order. Content that is held back comes out, at the latest, before the next other event."""
        passed: list[Event] = []
        for event in events:
            if self.matched is not None:
                break
            if isinstance(event, ContentDelta):
                text = self.feed(event.text)
                if text:
                    passed.append(ContentDelta(text))
                continue
            if rest := self.flush():
                passed.append(ContentDelta(rest))
            passed.append(event)
        return passed

    def feed(self, text: str) -> str:
        """The content that can be passed on after `text`; up to the stop string once one is found."""
        if self._starts is None:
            return text
        if self.matched is not None:
            return ""
        automaton, node, position = self._automaton, self._node, 0
        while position < len(text):
            if not node:
                start = self._starts.search(text, position)
                if start is None:
                    break
                position = start.start()
            node = automaton.next(node, text[position])
            position += 1
            if (found := automaton.found[node]) is not None:
                self.matched = found
                before = (self._held + text[:position])[: -len(found)]
                self._held = ""
                return before
        self._node = node
        whole = self._held + text
        passed = len(whole) - automaton.depths[node]
        self._held = whole[passed:]
        return whole[:passed]

    def flush(self) -> str:
        """What is held back: no stop string came of it."""
        held, self._held, self._node = self._held, "", 0
        return held


def _automaton(strings: Sequence[str]) -> _Automaton:
    made = _Automaton()
    for string in strings:
        node = 0
        for depth, character in enumerate(string, 1):
            following = made.following[node]
            if character not in following:
                following[character] = made.add(depth)
            node = following[character]
        made.found[node] = string
    queue = deque(made.following[0].values())  # the fail of these is the empty one
    while queue:
        node = queue.popleft()
        for character, child in made.following[node].items():
            made.fails[child] = fail = made.next(made.fails[node], character)
            made.found[child] = made.found[child] or made.found[fail]
            queue.append(child)
    return made
