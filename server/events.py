"""What a model said, as events.

Role: the vocabulary between `parsers/` (which make events) and `streaming/` (which turn them into an API's chunks or body).
Invariant: a streamed answer and a collected answer are made of the same events in the same order.
Must not: know any API's wire shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a generation ended, in the words of the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(slots=True, frozen=True)
class ReasoningDelta:
    """More text of the reasoning channel. Never empty."""

    text: str


@dataclass(slots=True, frozen=True)
class ContentDelta:
    """More text of the answer. Never empty."""

    text: str


@dataclass(slots=True, frozen=True)
class ToolCallStart:
    """A tool call begins. `index` counts the calls of one answer from 0; `name` is whole."""

    index: int
    name: str


@dataclass(slots=True, frozen=True)
class ToolCallArguments:
    """More of a call's arguments. The fragments of one call, joined, are one JSON object once the call has ended."""

    index: int
    fragment: str


@dataclass(slots=True, frozen=True)
class ToolCallEnd:
    """A tool call is complete: its joined fragments are valid JSON."""

    index: int


@dataclass(slots=True, frozen=True)
class ToolCallCut:
    """A tool call was cut off by the end of the generation.

    What a stream has sent of it is a prefix of valid JSON; a collected answer leaves the call out.
    """

    index: int


@dataclass(slots=True, frozen=True)
class Finish:
    """The end; always the last event.

    `reason` is `LENGTH` where a limit cut the answer off, else `TOOL_CALLS` where a `ToolCallEnd` came before, else `STOP`.
    """

    reason: FinishReason


Event = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArguments | ToolCallEnd | ToolCallCut | Finish
