"""The calls of one answer, held against their tools.

Role: inside step 7, between a parser and the client's wishes. Each call that has ended is checked against the schema of the tool
that it calls, streamed or not.
Invariant: a gate that `holds` lets nothing of a call pass before the whole of it has been found to fit; behind the first call
that does not, nothing passes at all, and `fault` says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from server.events import Event, ToolCallArguments, ToolCallCut, ToolCallEnd, ToolCallStart
from server.schemas.declared import DeclaredTools

_OF_CALLS: Final = frozenset({ToolCallStart, ToolCallArguments, ToolCallEnd, ToolCallCut})


@dataclass(slots=True, frozen=True)
class CallFault:
    """What is wrong with a call of tool `name`."""

    name: str
    what: str


class CallGate:
    """Checks the calls of one answer.

    `verdicts`: for each call that has ended, by its index, `delivered`, `invalid` or `undeclared`. `faults`: of those that do not
    fit; `fault`: of the call that a gate which holds has stopped.
    """

    __slots__ = ("_fragments", "_held", "_holds", "_name", "_tools", "fault", "faults", "verdicts")

    def __init__(self, tools: DeclaredTools, *, holds: bool) -> None:
        self._tools = tools
        self._holds = holds
        self._held: list[Event] = []
        self._name = ""
        self._fragments: list[str] = []
        self.verdicts: dict[int, str] = {}
        self.faults: list[CallFault] = []
        self.fault: CallFault | None = None

    @property
    def is_holding(self) -> bool:
        """Whether something of a call waits for the rest of it."""
        return bool(self._held)

    def pass_on(self, events: list[Event]) -> list[Event]:
        """What of `events`, and of what was held, may pass."""
        if self.fault is not None:
            return []
        for event in events:
            if type(event) in _OF_CALLS:
                break
        else:
            return events
        passed: list[Event] = []
        for event in events:
            if type(event) not in _OF_CALLS:
                passed.append(event)
                continue
            if not self._fits(event):
                break
            self._held.append(event)
            if not self._holds or isinstance(event, ToolCallEnd | ToolCallCut):
                passed += self._held
                self._held.clear()
        return passed

    def _fits(self, event: Event) -> bool:
        """Whether the client may have what ends here, if anything does."""
        if isinstance(event, ToolCallStart):
            self._name = event.name
            self._fragments.clear()
        elif isinstance(event, ToolCallArguments):
            self._fragments.append(event.fragment)
        elif isinstance(event, ToolCallEnd):
            self._check(event.index)
        else:
            self._held.clear()  # a gate that holds has sent nothing of it, and does not
        return self.fault is None

    def _check(self, index: int) -> None:
        what = self._tools.error_in(self._name, "".join(self._fragments))
        if what is None:
            self.verdicts[index] = "delivered"
            return
        fault = CallFault(self._name, what)
        self.faults.append(fault)
        self.verdicts[index] = "invalid" if self._name in self._tools.names else "undeclared"
        if self._holds:
            self.fault = fault
