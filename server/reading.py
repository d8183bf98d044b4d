"""One answer, read: engine deltas -> events, with stop strings and log probabilities.

Role: the seam inside step 7 between a parser, which knows the model's protocol, and the client's wishes, which it does not.
Invariant: the events, joined, do not depend on how the engine split its tokens into deltas. The log probabilities are those of
the tokens that the content is made of: their bytes, joined, are the content's (but for a token that a stop string cuts in two,
which is among them, and for bytes that are no text, of which the content has U+FFFD).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from server.calls import CallGate
from server.engine.base import EngineDelta, TokenLogprob
from server.events import ContentDelta, Event, Finish, FinishReason, ReasoningDelta, ToolCallCut, ToolCallEnd
from server.parsers.base import Parser
from server.parsers.stop import StopFilter
from server.vocabulary.base import Vocabulary

_TEXTS: Final = frozenset({ContentDelta, ReasoningDelta})


class AnswerReader:
    """Reads one choice. `finish` is set once the last event has been returned; read no more after that.

    `calls`: how many calls have passed, by what the gate found of them (`delivered` where there is none), or `cut`.
    """

    __slots__ = ("_gate", "_parser", "_placed", "_stop", "_vocabulary", "calls", "finish")

    def __init__(self, parser: Parser, stop: StopFilter | None, vocabulary: Vocabulary, gate: CallGate | None = None) -> None:
        self._parser = parser
        self._gate = gate
        self._stop = stop
        self._vocabulary = vocabulary
        self._placed: _PlacedLogprobs | None = None
        self.finish: FinishReason | None = None
        self.calls: Counter[str] = Counter()

    def read(self, delta: EngineDelta) -> tuple[list[Event], list[TokenLogprob] | None]:
        """Events of a delta, and the log probabilities of the content tokens behind them (None where not asked for)."""
        if delta.logprobs is not None:
            return self._read_by_token(delta)
        if delta.finish_reason is None:
            return self.read_tokens(delta.token_ids), None
        events = self._parser.feed(delta.token_ids)
        events += self._parser.finish(delta.finish_reason)
        return self._filter(events), None

    def read_tokens(self, token_ids: Sequence[int]) -> list[Event]:
        """As `read`, of a delta that is nothing but tokens."""
        events = self._parser.feed(token_ids)
        if len(events) == 1 and type(events[0]) in _TEXTS and self._passes_text:
            return events  # as `_filter` would; nearly all deltas are like that
        return self._filter(events)

    @property
    def _passes_text(self) -> bool:
        """Whether text passes as it is."""
        return self._stop is None and (self._gate is None or self._gate.fault is None)

    def _read_by_token(self, delta: EngineDelta) -> tuple[list[Event], list[TokenLogprob]]:
        """Token by token, so that it is known which of them each piece of content comes from."""
        placed = self._placed
        if placed is None:
            placed = self._placed = _PlacedLogprobs(self._vocabulary)
        events: list[Event] = []
        logprobs: list[TokenLogprob] = []
        for token_id, logprob in zip(delta.token_ids, delta.logprobs or (), strict=True):
            parsed = self._parser.feed((token_id,))
            if self._stop is None and placed.is_plain(token_id, parsed):
                logprobs.append(logprob)
                events += parsed
                continue
            placed.token(token_id, logprob, parsed)
            passed = self._filter(parsed)
            logprobs += placed.take(passed)
            events += passed
            if self.finish is not None:
                return events, logprobs
        if delta.finish_reason is not None:
            parsed = self._parser.finish(delta.finish_reason)
            placed.content(parsed)
            passed = self._filter(parsed)
            logprobs += placed.take(passed)
            events += passed
        return events, logprobs

    def _filter(self, events: list[Event]) -> list[Event]:
        """`events` up to the first stop string in the content, or call that must not pass; counts calls and notes the end."""
        if self._gate is not None:
            events = self._gate.pass_on(events)
        if self._stop is not None:
            events = self._stop.filter(events)
            if self._stop.matched is not None:
                has_calls = self.calls.total() - self.calls["cut"] or any(type(event) is ToolCallEnd for event in events)
                events.append(Finish(FinishReason.TOOL_CALLS if has_calls else FinishReason.STOP))
        for event in events:
            if type(event) is ToolCallEnd:
                self.calls[self._gate.verdicts[event.index] if self._gate is not None else "delivered"] += 1
            elif type(event) is ToolCallCut:
                self.calls["cut"] += 1
            elif type(event) is Finish:
                self.finish = event.reason
        return events


class _PlacedLogprobs:
    """Log probabilities on their way from the parser to the client, each with the place of its token in the content, in bytes.

    A token waits, first, until the parser says what it is (the beginning of a character, part of a marker), and then until the
    stop filter lets the first byte of it pass.
    """

    __slots__ = ("_control_ids", "_num_parsed", "_num_passed", "_pieces", "_placed", "_unread")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._control_ids = vocabulary.control_ids
        self._pieces = vocabulary.pieces
        self._unread: list[tuple[TokenLogprob, int]] = []  # and the number of bytes
        self._placed: deque[tuple[int, TokenLogprob]] = deque()  # begins at, of tokens of the content
        self._num_parsed = 0  # bytes of content out of the parser
        self._num_passed = 0  # bytes of content past the stop filter

    def is_plain(self, token_id: int, events: list[Event]) -> bool:
        """Whether the events are one piece of content, and come from this token alone. Almost all tokens are like that."""
        return len(events) == 1 and type(events[0]) is ContentDelta and not self._unread and token_id not in self._control_ids

    def token(self, token_id: int, logprob: TokenLogprob, events: list[Event]) -> None:
        """The next token, and what the parser makes of it."""
        is_ordinary = token_id not in self._control_ids
        if is_ordinary and 0 <= token_id < len(self._pieces):
            self._unread.append((logprob, len(self._pieces[token_id])))
        self.content(events)
        if events or not is_ordinary:  # a control token ends a marker, whose tokens are not content
            self._unread.clear()

    def content(self, events: list[Event]) -> None:
        """What the parser makes of the tokens before. Content is made of the last of them: what was dropped came first."""
        if not (num_bytes := _num_content_bytes(events)):
            return
        begin, end = self._num_parsed, self._num_parsed + num_bytes
        self._num_parsed = end
        placed: list[tuple[int, TokenLogprob]] = []
        for logprob, size in reversed(self._unread):
            if end <= begin:
                break
            end = max(begin, end - size)
            placed.append((end, logprob))
        self._placed.extend(reversed(placed))
        self._unread.clear()

    def take(self, events: list[Event]) -> list[TokenLogprob]:
        """Log probabilities of the tokens that begin in what the stop filter has let pass, `events` included."""
        self._num_passed += _num_content_bytes(events)
        taken: list[TokenLogprob] = []
        while self._placed and self._placed[0][0] < self._num_passed:
            taken.append(self._placed.popleft()[1])
        return taken


def _num_content_bytes(events: list[Event]) -> int:
    return sum(len(event.text.encode()) for event in events if type(event) is ContentDelta)
