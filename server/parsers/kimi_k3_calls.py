"""The tool calls of one K3 answer: which are delivered, and their events.

Role: `kimi_k3_message.py` knows where in the answer a call begins and ends; this knows what of it reaches the client.
Invariant: at most one call is open; each delivered call is `ToolCallStart`, arguments, then `ToolCallEnd` or `ToolCallCut`. Calls
without a tool, and those beyond what the request expects, are read and dropped.
"""

from __future__ import annotations

from collections.abc import Mapping

from server.events import Event, ToolCallArguments, ToolCallCut, ToolCallEnd, ToolCallStart
from server.parsers.arguments import CallArguments
from server.parsers.base import Expected
from server.parsers.event_run import EventRun
from server.parsers.recovery import Recoveries, Recovery


class Calls:
    """The events go to `run`. `index`: of the last delivered call, -1 before the first; `num_ended`: calls that were whole."""

    __slots__ = ("_arguments", "_expected", "_recoveries", "_run", "index", "num_ended")

    def __init__(self, expected: Expected, run: EventRun, recoveries: Recoveries) -> None:
        self._expected = expected
        self._run = run
        self._recoveries = recoveries
        self._arguments: CallArguments | None = None  # of the open call, if it is delivered
        self.index = -1
        self.num_ended = 0

    def open(self, attributes: Mapping[str, str]) -> bool:
        """A call begins: whether it is delivered."""
        expected, tool = self._expected, attributes.get("tool")
        if not tool:
            self._recoveries.count(Recovery.UNNAMED_CALL)
            return False
        if expected.max_calls is not None and self.index + 1 >= expected.max_calls:
            self._recoveries.count(Recovery.EXTRA_CALL if expected.max_calls else Recovery.FORBIDDEN_CALL)
            return False
        if expected.tool_names is not None and tool not in expected.tool_names:
            self._recoveries.count(Recovery.UNDECLARED_TOOL)
        self.index += 1
        types = expected.types_of(tool) if expected.types_of is not None else {}
        self._arguments = CallArguments(self._recoveries.count, types)
        self._run.add(ToolCallStart(self.index, tool))
        return True

    def open_argument(self, attributes: Mapping[str, str]) -> None:
        """An argument of the open call begins."""
        if self._arguments is not None:
            self._run.arguments(self.index, self._arguments.open_argument(attributes.get("key"), attributes.get("type")))

    def open_object(self) -> None:
        """A JSON body of the open call begins."""
        if self._arguments is not None:
            self._arguments.open_object()

    def open_bare_object(self) -> bool:
        """`{` stands where an argument should begin: whether it may be the JSON body, which then begins."""
        if self._arguments is None or not self._arguments.empty:
            return False
        self._recoveries.count(Recovery.BARE_JSON_ARGUMENTS)
        self._arguments.open_object()
        return True

    def fragment(self, text: str) -> str:
        """What `text` of the open value adds to the arguments of call `index`."""
        return "" if self._arguments is None else self._arguments.feed(text)

    def fragments(self, text: str) -> list[Event]:
        """As `fragment`, as events."""
        fragment = self.fragment(text)
        return [ToolCallArguments(self.index, fragment)] if fragment else []

    def close_value(self) -> None:
        """The open value ends."""
        if self._arguments is not None:
            self._run.arguments(self.index, self._arguments.close_element())

    def close(self) -> None:
        """The open call ends."""
        if self._arguments is not None:
            self._run.arguments(self.index, self._arguments.close())
            self._run.add(ToolCallEnd(self.index))
            self._arguments = None
            self.num_ended += 1

    def cut(self) -> None:
        """The answer is over: if a call is open, it is not whole."""
        if self._arguments is not None:
            self._arguments = None
            self._run.add(ToolCallCut(self.index))
