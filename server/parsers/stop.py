"""Stop strings: the answer ends where one of them begins.

Role: between a parser and `streaming/`. Content only: a stop string inside reasoning or arguments is just text.
Invariant: what comes out does not depend on how the content was split; held back is only what may be the beginning of a stop
string; every character is looked at once, whatever the number of stop strings (Aho–Corasick).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from server.events import ContentDelta, Event


class _Node:
    """A prefix of a stop string: `depth` characters long; `found` is the longest stop string that it ends with."""

    __slots__ = ("depth", "fail", "following", "found")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.following: dict[str, _Node] = {}
        self.fail: _Node | None = None
        self.found: str | None = None


class StopStrings:
    """Stop strings, ready to be searched for: made once a request, read by the filters of all its answers.

    A few milliseconds for the two thousand characters that a request may have.
    """

    __slots__ = ("root", "starts")

    def __init__(self, strings: Sequence[str]) -> None:
        """Empty ones are ignored."""
        strings = [string for string in strings if string]
        self.root = _automaton(strings)
        self.starts = re.compile(f"[{re.escape(''.join({string[0] for string in strings}))}]") if strings else None


class StopFilter:
    """Passes the events of one answer on until a stop string is complete.

    The stop string that is complete first wins; of those complete at the same character, the longest. Once `matched` is set the
    caller ends the generation with finish reason `stop`; whatever is filtered later vanishes.
    """

    __slots__ = ("_held", "_node", "_root", "_starts", "matched")

    def __init__(self, stop: StopStrings) -> None:
        self._root = stop.root
        self._starts = stop.starts
        self._node = self._root
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
        node, position = self._node, 0
        while position < len(text):
            if node is self._root:
                start = self._starts.search(text, position)
                if start is None:
                    break
                position = start.start()
            node = self._next(node, text[position])
            position += 1
            if node.found is not None:
                self.matched = node.found
                before = (self._held + text[:position])[: -len(node.found)]
                self._held = ""
                return before
        self._node = node
        whole = self._held + text
        passed = len(whole) - node.depth
        self._held = whole[passed:]
        return whole[:passed]

    def flush(self) -> str:
        """What is held back: no stop string came of it."""
        held, self._held, self._node = self._held, "", self._root
        return held

    def _next(self, node: _Node, character: str) -> _Node:
        """The longest prefix that the text read so far, with `character`, ends with."""
        while True:
            following = node.following.get(character)
            if following is not None:
                return following
            if node.fail is None:
                return node
            node = node.fail


def _automaton(strings: Sequence[str]) -> _Node:
    root = _Node(0)
    for string in strings:
        node = root
        for character in string:
            node = node.following.setdefault(character, _Node(node.depth + 1))
        node.found = string
    queue = deque([root])
    while queue:
        node = queue.popleft()
        for character, child in node.following.items():
            fail = node.fail
            while fail is not None and character not in fail.following:
                fail = fail.fail
            child.fail = root if fail is None else fail.following[character]
            child.found = child.found or child.fail.found
            queue.append(child)
    return root
