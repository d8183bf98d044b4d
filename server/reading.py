"""One answer, read: engine deltas -> events, with stop strings and log probabilities.

Role: the seam inside step 7 between a parser, which knows the model's protocol, and the client's wishes, which it does not.
Invariant: the events, joined, do not depend on how the engine split its tokens into deltas.
"""

from __future__ import annotations

from collections.abc import Set

from server.engine.base import EngineDelta, TokenLogprob
from server.events import ContentDelta, Event, Finish, FinishReason, ToolCallCut, ToolCallEnd
from server.parsers.base import Parser
from server.parsers.stop import StopFilter


class AnswerReader:
    """Reads one choice. `finish` is set once the last event has been returned; read no more after that."""

    __slots__ = ("_control_ids", "_held_logprobs", "_parser", "_stop", "finish", "num_calls", "num_cut_calls")

    def __init__(self, parser: Parser, stop: StopFilter | None, control_ids: Set[int]) -> None:
        self._parser = parser
        self._stop = stop
        self._control_ids = control_ids
        self._held_logprobs: list[TokenLogprob] = []
        self.finish: FinishReason | None = None
        self.num_calls = 0
        self.num_cut_calls = 0

    def read(self, delta: EngineDelta) -> tuple[list[Event], list[TokenLogprob] | None]:
        """Events of a delta, and the log probabilities of the content tokens behind them (None where not asked for)."""
        if delta.logprobs is None:
            return self._filter(self._parse(delta)), None
        return self._read_by_token(delta)

    def _parse(self, delta: EngineDelta) -> list[Event]:
        events = self._parser.feed(delta.token_ids)
        if delta.finish_reason is not None:
            events += self._parser.finish(delta.finish_reason)
        return events

    def _read_by_token(self, delta: EngineDelta) -> tuple[list[Event], list[TokenLogprob]]:
        """Token by token, so that each content event is known to come from the tokens held since the last one."""
        events: list[Event] = []
        logprobs: list[TokenLogprob] = []
        for token_id, logprob in zip(delta.token_ids, delta.logprobs or (), strict=True):
            self._held_logprobs.append(logprob)
            made = self._filter(self._parser.feed((token_id,)))
            if any(isinstance(event, ContentDelta) for event in made):
                logprobs += self._held_logprobs
            if made or token_id in self._control_ids:  # a control token ends a marker, whose tokens are not content
                self._held_logprobs.clear()
            events += made
            if self.finish is not None:
                return events, logprobs
        if delta.finish_reason is not None:
            made = self._filter(self._parser.finish(delta.finish_reason))
            if any(isinstance(event, ContentDelta) for event in made):
                logprobs += self._held_logprobs
            events += made
        return events, logprobs

    def _filter(self, events: list[Event]) -> list[Event]:
        """`events` up to the first stop string in the content; counts calls and notes the end."""
        if self._stop is not None:
            events = self._stop.filter(events)
            if self._stop.matched is not None:
                has_calls = self.num_calls or any(type(event) is ToolCallEnd for event in events)
                events.append(Finish(FinishReason.TOOL_CALLS if has_calls else FinishReason.STOP))
        for event in events:
            if type(event) is ToolCallEnd:
                self.num_calls += 1
            elif type(event) is ToolCallCut:
                self.num_cut_calls += 1
            elif type(event) is Finish:
                self.finish = event.reason
        return events
