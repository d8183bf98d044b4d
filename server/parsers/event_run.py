"""Events in the making: neighbouring deltas of a kind become one event."""

from __future__ import annotations

from server.events import ContentDelta, Event, ReasoningDelta, ToolCallArguments

_REASONING = -1
_CONTENT = -2
_NOTHING = -3


class EventRun:
    """Collects the events of one `feed`. Empty texts vanish, so that no delta is empty."""

    __slots__ = ("_events", "_kind", "_texts")

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._kind = _NOTHING  # of `_texts`; 0 and above: the index of a call
        self._texts: list[str] = []

    def reasoning(self, text: str) -> None:
        """More reasoning."""
        self._append(_REASONING, text)

    def content(self, text: str) -> None:
        """More content."""
        self._append(_CONTENT, text)

    def arguments(self, index: int, fragment: str) -> None:
        """More of the arguments of call `index`."""
        self._append(index, fragment)

    def add(self, event: Event) -> None:
        """An event that is no delta."""
        self._join()
        self._events.append(event)

    def take(self) -> list[Event]:
        """The events so far. The run is then empty."""
        self._join()
        events, self._events = self._events, []
        return events

    def _append(self, kind: int, text: str) -> None:
        if not text:
            return
        if kind != self._kind:
            self._join()
            self._kind = kind
        self._texts.append(text)

    def _join(self) -> None:
        if not self._texts:
            return
        text = "".join(self._texts)
        self._texts.clear()
        if self._kind == _REASONING:
            self._events.append(ReasoningDelta(text))
        elif self._kind == _CONTENT:
            self._events.append(ContentDelta(text))
        else:
            self._events.append(ToolCallArguments(self._kind, text))
