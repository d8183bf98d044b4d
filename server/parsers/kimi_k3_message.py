"""What K3's markers and texts mean: the grammar of one answer as a state machine.

Role: `kimi_k3.py` reads tokens as markers and text; this says what each is at the place where it stands, and `kimi_k3_calls.py`
what becomes of the calls. With O C S for `<|open|>
<|close|> <|sep|>` an answer is

    reasoning C think S  O response S  content C response S  [O tools S  call+  C tools S]  C message S
    call:      O call tool= index= S  (O argument key= type= S value C argument S)*  C call S
               (or one  O json type="object" S object C json S  in place of the arguments)

and begins inside think or inside response. Every departure from it has one reading, chosen so that what the model said arrives
where a client looks for it, that nothing already sent is contradicted, and that a delivered call is always whole: see `Recovery`.
Invariant: a call that has ended is one JSON object; a value that no marker closed is not known to be whole, so its call is cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from server.events import FinishReason
from server.parsers.base import Expected
from server.parsers.event_run import EventRun
from server.parsers.kimi_k3_calls import Calls
from server.parsers.recovery import Recoveries, Recovery

MAX_REPEATED_TEXTS: Final = 4096  # about as many tokens


class Place(Enum):
    """Where the next token stands."""

    THINK = auto()  # body: reasoning
    AFTER_THINK = auto()
    RESPONSE = auto()  # body: content
    AFTER_RESPONSE = auto()
    TOOLS = auto()  # between calls
    CALL = auto()  # between arguments
    VALUE = auto()  # body: an argument or the JSON of a call
    AFTER_TOOLS = auto()
    END = auto()  # after the message


_BODIES: Final = frozenset({Place.THINK, Place.RESPONSE, Place.VALUE})
_IN_TOOLS: Final = frozenset({Place.TOOLS, Place.CALL, Place.VALUE})
_UNCLOSED: Final = {
    Place.THINK: Recovery.UNCLOSED_THINK,
    Place.RESPONSE: Recovery.UNCLOSED_RESPONSE,
    Place.TOOLS: Recovery.UNCLOSED_TOOLS,
    Place.VALUE: Recovery.UNCLOSED_ARGUMENT,
}


class Message:
    """One answer. `place` and `calls` are to be read; `run` collects the events."""

    __slots__ = ("_answered", "_astray", "_recoveries", "_thought", "calls", "place", "run")

    def __init__(self, *, thinking: bool, expected: Expected, recoveries: Recoveries) -> None:
        self.place = Place.THINK if thinking else Place.RESPONSE
        self.run = EventRun()
        self.calls = Calls(expected, self.run, recoveries)
        self._recoveries = recoveries
        self._answered = not thinking  # a response or a call was opened
        self._thought: list[str] = []  # what think says, while it may turn out to be the answer
        self._astray = False  # text is being dropped

    @property
    def in_body(self) -> bool:
        """Whether ordinary tokens are text here."""
        return self.place in _BODIES

    def text(self, text: str) -> None:
        """Text of the body that is open."""
        if self.place is Place.THINK:
            self.remember(text)
            self.run.reasoning(text)
        elif self.place is Place.RESPONSE:
            self.run.content(text)
        else:
            self.run.arguments(self.calls.index, self.calls.fragment(text))

    def remember(self, text: str) -> None:
        """Keep reasoning for the case that it is the answer, up to one text more than may be repeated."""
        if len(self._thought) <= MAX_REPEATED_TEXTS:
            self._thought.append(text)

    def begin_text(self, start: bytes) -> bool:
        """Text begins with `start` where structure should stand: whether a body was opened for it."""
        if self.place is Place.AFTER_THINK:
            self._count(Recovery.MISSING_OPENER)
            self._enter_response()
        elif self.place is Place.AFTER_RESPONSE:
            self._count(Recovery.TEXT_AFTER_RESPONSE)
            self._enter_response()
        elif self.place is Place.CALL and start.startswith(b"{") and self.calls.open_bare_object():
            self.place = Place.VALUE
        else:
            if not self._astray:
                self._count(Recovery.AFTER_MESSAGE if self.place is Place.END else Recovery.STRAY_TEXT)
            self._astray = True
            return False
        return True

    def open(self, tag: str, attributes: Mapping[str, str]) -> None:
        """`<|open|>tag …<|sep|>`."""
        self._astray = False
        if self.place is Place.END:
            self._count(Recovery.AFTER_MESSAGE)
        elif tag == "think":
            self._open_think()
        elif tag == "response":
            self._open_response()
        elif tag == "tools":
            self._open_tools()
        elif tag == "call":
            self._open_call(attributes)
        elif tag in ("argument", "json"):
            self._open_element(tag, attributes)
        else:
            self._count(Recovery.MISPLACED_MARKER if tag == "message" else Recovery.UNKNOWN_MARKER)

    def _open_think(self) -> None:
        if self.place is Place.THINK:
            self._count(Recovery.REOPENED_CHANNEL)
            return
        self._leave()
        self._count(Recovery.REPEATED_CHANNEL)
        self.place = Place.THINK

    def _open_response(self) -> None:
        if self.place is Place.RESPONSE:
            self._count(Recovery.REOPENED_CHANNEL)
            return
        if self.place is Place.AFTER_RESPONSE or self.place is Place.AFTER_TOOLS:
            self._count(Recovery.REPEATED_CHANNEL)
        self._leave()
        self._enter_response()

    def _open_tools(self) -> None:
        if self.place is Place.TOOLS:
            self._count(Recovery.REOPENED_CHANNEL)
            return
        if self.place in (Place.AFTER_TOOLS, Place.CALL, Place.VALUE):
            self._count(Recovery.REPEATED_CHANNEL)
        self._leave()
        self.place = Place.TOOLS

    def _open_call(self, attributes: Mapping[str, str]) -> None:
        if self.place not in _IN_TOOLS:
            self._leave()
            self._count(Recovery.MISSING_OPENER)
        self._end_call(closed=False)
        self.place = Place.CALL
        if self.calls.open(attributes):
            self._answered = True

    def _open_element(self, tag: str, attributes: Mapping[str, str]) -> None:
        if self.place is Place.VALUE:
            self._end_value(closed=False)
        if self.place is not Place.CALL:
            self._count(Recovery.MISPLACED_MARKER)
            return
        self.place = Place.VALUE
        if tag == "json":
            self.calls.open_object()
        else:
            self.calls.open_argument(attributes)

    def close(self, tag: str) -> None:
        """`<|close|>tag<|sep|>`."""
        self._astray = False
        place = self.place
        if place is Place.END:
            self._count(Recovery.AFTER_MESSAGE)
        elif tag == "think" and place is Place.THINK:
            self._forget()
            self.place = Place.AFTER_THINK
        elif tag == "response" and place not in (Place.AFTER_RESPONSE, Place.AFTER_TOOLS):
            self._close_response()
        elif tag == "tools" and place in _IN_TOOLS:
            self._end_call(closed=False)
            self.place = Place.AFTER_TOOLS
        elif tag == "call" and place in (Place.CALL, Place.VALUE):
            self._end_value(closed=False)
            self._end_call(closed=True)
        elif tag in ("argument", "json") and place is Place.VALUE:
            self._end_value(closed=True)
        elif tag == "message":
            self._close_message()
        else:
            self._count(Recovery.MISPLACED_MARKER)

    def _close_response(self) -> None:
        if self.place is Place.RESPONSE:
            self.place = Place.AFTER_RESPONSE
        elif self.place is Place.THINK:
            self._repeat_thought()
            self.place = Place.AFTER_RESPONSE
        elif self.place is Place.AFTER_THINK:
            self._count(Recovery.MISSING_OPENER)
            self.place = Place.AFTER_RESPONSE
        else:
            self._leave()
            self.place = Place.AFTER_TOOLS

    def _close_message(self) -> None:
        if self.place is Place.THINK:
            self._repeat_thought()
        else:
            self._leave()
        self.place = Place.END

    def _repeat_thought(self) -> None:
        """The model answered without leaving think: unless there is an answer, the reasoning is it, and comes again."""
        self._count(Recovery.ANSWERED_IN_THINK)
        if len(self._thought) <= MAX_REPEATED_TEXTS and not self._answered:
            self.run.content("".join(self._thought))
        self._answered = True
        self._forget()

    def finish(self, reason: str, *, ended: bool) -> FinishReason:
        """The generation is over. `ended`: the end token was among the tokens.

        A call whose last value is closed is delivered when the model itself ended the answer; any other open call is cut.
        """
        if ended and self.place is Place.THINK:
            self._count(Recovery.ENDED_IN_THINK)
        elif ended and self.place in _UNCLOSED:
            self._count(_UNCLOSED[self.place])
        if self.place is Place.CALL and reason == "stop":
            self._end_call(closed=False)
        else:
            self.calls.cut()
        if reason == "length":
            return FinishReason.LENGTH
        return FinishReason.TOOL_CALLS if self.calls.num_ended else FinishReason.STOP

    def _leave(self) -> None:
        """Close whatever is open, because something else begins."""
        if self.place is Place.THINK:
            self._forget()
        self._end_call(closed=False)
        if self.place in _UNCLOSED:
            self._count(_UNCLOSED[self.place])

    def _end_value(self, *, closed: bool) -> None:
        if self.place is not Place.VALUE:
            return
        if not closed:
            self._count(Recovery.UNCLOSED_ARGUMENT)
        self.place = Place.CALL
        self.calls.close_value()

    def _end_call(self, *, closed: bool) -> None:
        self._end_value(closed=False)
        if self.place is not Place.CALL:
            return
        if not closed:
            self._count(Recovery.UNCLOSED_CALL)
        self.place = Place.TOOLS
        self.calls.close()

    def _enter_response(self) -> None:
        self._answered, self.place = True, Place.RESPONSE

    def _forget(self) -> None:
        """What think said so far was no answer."""
        self._thought.clear()

    def _count(self, kind: Recovery) -> None:
        self._recoveries.count(kind)
