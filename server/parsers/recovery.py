"""What can be wrong with an answer, and how it is read.

Role: one name for each anomaly that a parser reads around; a closed set, fit for a metric's label.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum


class Recovery(StrEnum):
    """Kinds of anomaly. Each is counted where it is read around; the reading is told beside the kind."""

    # Channels
    UNCLOSED_THINK = "unclosed_think"  # another channel opens inside think: think ends there
    ANSWERED_IN_THINK = "answered_in_think"  # response or message closes inside think: its text is repeated as content
    ENDED_IN_THINK = "ended_in_think"  # the end token inside think: reasoning, no content
    UNCLOSED_RESPONSE = "unclosed_response"  # the message, another channel or the end token ends the response
    UNCLOSED_TOOLS = "unclosed_tools"  # the same for tools
    MISSING_OPENER = "missing_opener"  # a channel is written or closed without being opened: opened there
    REOPENED_CHANNEL = "reopened_channel"  # the opener of the channel that is open: ignored
    REPEATED_CHANNEL = "repeated_channel"  # a channel that was closed opens again: it goes on
    TEXT_AFTER_RESPONSE = "text_after_response"  # goes on as content
    STRAY_TEXT = "stray_text"  # text where only structure may stand: dropped
    AFTER_MESSAGE = "after_message"  # anything after the closed message: dropped

    # Markers
    SPELLED_MARKER = "spelled_marker"  # written in ordinary tokens where a marker must stand: understood
    MISSING_SEPARATOR = "missing_separator"  # `<|sep|>` left out before the next control token: understood
    BROKEN_MARKER = "broken_marker"  # no marker comes of it: dropped, or text where it can't be one
    UNKNOWN_MARKER = "unknown_marker"  # a tag that the format doesn't have: dropped
    MISPLACED_MARKER = "misplaced_marker"  # means nothing where it stands: dropped
    STRAY_CONTROL = "stray_control"  # any other control token, or an id that the vocabulary doesn't have: dropped

    # Calls
    UNDECLARED_TOOL = "undeclared_tool"  # delivered as it is
    FORBIDDEN_CALL = "forbidden_call"  # a call where none may be: dropped
    EXTRA_CALL = "extra_call"  # a call beyond as many as may be: dropped
    UNNAMED_CALL = "unnamed_call"  # a call without a tool: dropped
    UNCLOSED_CALL = "unclosed_call"  # closed there
    UNNAMED_ARGUMENT = "unnamed_argument"  # an argument without a key: dropped
    UNCLOSED_ARGUMENT = "unclosed_argument"  # closed there
    DUPLICATE_ARGUMENT = "duplicate_argument"  # the first stays
    MIXED_ARGUMENTS = "mixed_arguments"  # a JSON body beside arguments: the first form stays
    BARE_JSON_ARGUMENTS = "bare_json_arguments"  # an object right in the call: read as its JSON body
    UNTYPED_ARGUMENT = "untyped_argument"  # no type, or one that JSON doesn't have: JSON if it reads as JSON, else a string
    WRONG_TYPE = "wrong_type"  # valid JSON of another type than the tag says: delivered as it is
    COERCED_VALUE = "coerced_value"  # another type than the tag says, because the schema has only that: read as the schema wants
    INVALID_JSON = "invalid_json"  # repaired, or delivered as a string


class Recoveries:
    """How often each kind was met in one answer."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, kind: Recovery) -> None:
        """One more of `kind`."""
        self._counts[kind.value] += 1

    def as_dict(self) -> dict[str, int]:
        """Kind -> times, those that happened."""
        return dict(self._counts)
