"""Writes answers as the model does, well formed or with anomalies, and says what a client is to get of each.

`Writer` is the tests' own idea of the protocol: for every anomaly that it writes it notes the events and the recoveries that are
to come of it. What it knows of the place where an anomaly stands is kept in `place`, as the grammar names it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.parsers.answer_calls import CallDraft

ANOMALIES = (
    *("think_opener", "message_opener", "ends_in_think", "answers_in_think", "skips_think_close", "thinks_again"),
    *("response_opener", "response_opener_missing", "response_unclosed", "text_after_response", "second_response"),
    *("tools_opener_missing", "tools_opener_twice", "second_tools_channel", "response_in_tools", "tools_unclosed"),
    *("stray_text", "stray_control", "unknown_marker", "broken_marker", "misplaced_marker", "reopened_channel"),
    *("undeclared_tool", "unnamed_call", "call_unclosed", "unnamed_argument", "argument_unclosed", "duplicate_argument"),
    *("mixed_arguments", "bare_json", "broken_off", "ends_in_argument", "message_unclosed", "after_message"),
    *("spelled_marker", "spelled_separator", "missing_separator"),
)
TAGS = ("think", "response", "tools", "call", "argument", "json", "message")


@dataclass
class Answer:
    """`events` as the conftest's `joined` has them; `expected`: arguments of `Expected`."""

    pieces: list[Any]
    thinking: bool
    events: list[list[Any]]
    recoveries: dict[str, int]
    anomalies: list[str]
    expected: dict[str, Any] = field(default_factory=dict)


class Writer(CallDraft):
    """One answer."""

    def write(self) -> Answer:
        """The whole answer."""
        self._start()
        if self.thinking:
            self._think()
        if self.place in ("think", "after_think", "response") and not (self.thinking and self.random.random() < 0.15):
            self._response()
        if self.place != "end" and (num_calls := self.random.choice((0, 0, 1, 1, 2, 3))):
            self._tools(num_calls)
        self._end()
        self._change_markers()
        self.words.append(["finish", "tool_calls" if any(word[0] == "end" for word in self.words) else "stop"])
        expected = {"tools": self.tools, "max_calls": self.max_calls}
        if self.typed:
            expected["types_of"] = lambda name: self.types
        recoveries = {kind: count for kind, count in self.kinds.items() if count}
        return Answer(self.pieces, self.thinking, self.words, recoveries, self.applied, expected)

    # Channels

    def _start(self) -> None:
        """What is written before all text."""
        channel = "think" if self.thinking else "response"
        if self._has("message_opener"):
            self.pieces.append(["open", 'message role="assistant"', "sep"])
            self.kinds["misplaced_marker"] += 1
        elif self._has(f"{channel}_opener"):
            self.kinds["reopened_channel"] += 1
            if self.random.random() < 0.3:
                self.pieces.append(["open", channel, "sep"])
            else:
                self.kinds["spelled_marker"] += 1
                self._spell("open", channel)

    def _think(self) -> None:
        self.thought = self._body("reasoning")
        if self._has("ends_in_think"):
            self.kinds["ended_in_think"] += 1
            self.pieces.append(["end_of_msg"])
            self.place = "end"
        elif self._has("answers_in_think"):
            tag = self.random.choice(("response", "message"))
            self.pieces.append(["close", tag, "sep"])
            self._answered_in_think("after_response" if tag == "response" else "end")
        elif not self._has("skips_think_close"):
            self.pieces.append(["close", "think", "sep"])
            self.place = "after_think"

    def _answered_in_think(self, place: str) -> None:
        self.kinds["answered_in_think"] += 1
        self._say("content", self.thought)
        self.place = place

    def _response(self) -> None:
        is_missing = self.place == "after_think" and self._has("response_opener_missing")
        if is_missing:
            self.kinds["missing_opener"] += 1
        elif self.thinking:
            self._mark("open", "response")
            self._leave()
        self.place = "response"
        self._body("content", plain_start=is_missing)
        if self._has("response_unclosed"):
            return
        self._close_response()
        if self._has("text_after_response"):
            self.kinds["text_after_response"] += 1
            self.place = "response"
            self._body("content", plain_start=True)
            if self.random.random() < 0.5:
                return
            self._close_response()
        if self._has("second_response"):
            self._repeat("response", "content")
            self._close_response()
        if self._has("thinks_again"):
            self._repeat("think", "reasoning")
            self.pieces.append(["close", "think", "sep"])
            self.place = "after_think"

    def _close_response(self) -> None:
        self.pieces.append(["close", "response", "sep"])
        self.place = "after_response"

    def _repeat(self, channel: str, kind: str) -> None:
        self._mark("open", channel)
        self.kinds["repeated_channel"] += 1
        self.place = channel
        self._body(kind)

    def _tools(self, num_calls: int) -> None:
        if not self._has("tools_opener_missing"):
            self._mark("open", "tools")
            self._leave()
            self.place = "tools"
            if self._has("tools_opener_twice"):
                self._mark("open", "tools")
                self.kinds["reopened_channel"] += 1
        for number in range(num_calls):
            self._call(is_last=number == num_calls - 1)
            if self.place == "end":
                return
            if self._has("second_tools_channel"):
                self._mark("close", "tools")
                self._end_call()
                self.place = "after_tools"
                self._mark("open", "tools")
                self.kinds["repeated_channel"] += 1
                self.place = "tools"
        if self._has("response_in_tools"):
            self._mark("open", "response")
            self._leave()
            self.place = "response"
            self._body("content")
            self._close_response()
        elif not self._has("tools_unclosed"):
            self._mark("close", "tools")
            self._end_call()
            self.place = "after_tools"

    # The end

    def _end(self) -> None:
        if self.pieces and self.pieces[-1] == ["end_of_msg"]:
            return
        if self.place != "end" and not self._has("message_unclosed"):
            self._mark("close", "message")
            if self.place == "think":
                self._answered_in_think("end")
            else:
                self._leave()
            self.place = "end"
            if self._has("after_message"):
                self.pieces += ["more", ["open", "response", "sep"], "again"]
                self.kinds["after_message"] += 3
        if self.place == "think":
            self.kinds["ended_in_think"] += 1
        elif self.is_call_open:
            self._end_call()
        else:
            self._leave()
        self.pieces.append(["end_of_msg"])

    def _change_markers(self) -> None:
        """Separators left out, or in ordinary tokens; then neighbouring texts become one, so that tokens may span them."""
        changed: list[Any] = []
        for number, piece in enumerate(self.pieces):
            following = self.pieces[number + 1] if number + 1 < len(self.pieces) else ""
            is_marker = isinstance(piece, list) and len(piece) == 3 and piece[1].split()[0] in TAGS
            if is_marker and following[:1] in (["open"], ["close"], ["end_of_msg"]) and self._has("missing_separator"):
                changed.append(piece[:2])
                self.kinds["missing_separator"] += 1
            elif is_marker and self._has("spelled_separator"):
                changed += [[piece[0]], f"{piece[1]}<|sep|>"]
                self.kinds["spelled_marker"] += 1
            else:
                changed.append(piece)
        self.pieces = []
        for piece in changed:
            if isinstance(piece, str) and self.pieces and isinstance(self.pieces[-1], str):
                self.pieces[-1] += piece
            elif piece != "":
                self.pieces.append(piece)
