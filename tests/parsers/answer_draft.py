"""What is written of an answer so far, and what a client is to get of it: the means of `answers.py`."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from tests.parsers.answer_values import TEXTS

NAMES = ("get_weather", 'say "hi" & go', "поиск")
FIRST_OPENERS = ("<|open|>think<|sep|>", "<|open|>response<|sep|>")
UNCLOSED = {"think": "unclosed_think", "response": "unclosed_response", "tools": "unclosed_tools"}


class Draft:
    """`place`: where the last piece has led to; `over`: behind the end token."""

    def __init__(
        self, random: Random, *, thinking: bool, declared: bool, typed: bool, max_calls: int | None, chosen: set[str]
    ) -> None:
        self.random = random
        self.thinking = thinking
        self.tools = NAMES if declared else None
        self.typed = typed
        self.max_calls = max_calls
        self.chosen = chosen
        self.applied: list[str] = []
        self.pieces: list[Any] = []
        self.words: list[list[Any]] = []
        self.kinds: Counter[str] = Counter()
        self.types: dict[str, frozenset[str]] = {}
        self.place = "think" if thinking else "response"
        self.thought = ""
        self.num_calls = 0  # delivered
        self.arguments: str | None = None  # of the open call, if it is delivered
        self.is_call_open = False
        self.is_value_open = False
        self.has_json = False  # the open call has a JSON body

    def _has(self, anomaly: str) -> bool:
        if anomaly not in self.chosen or self.random.random() > 0.7:
            return False
        self.applied.append(anomaly)
        return True

    def _say(self, *word: Any) -> None:
        if word[-1] == "":
            return
        if self.words and self.words[-1][:-1] == list(word[:-1]) and word[0] in ("reasoning", "content"):
            self.words[-1][-1] += word[-1]
        else:
            self.words.append(list(word))

    def _mark(self, verb: str, header: str) -> None:
        """A marker; between elements, where that is an anomaly, spelled in ordinary tokens in one of three ways."""
        if self.place in ("think", "response") or self.is_value_open or not self._has("spelled_marker"):
            self.pieces.append([verb, header, "sep"])
            return
        self.kinds["spelled_marker"] += 1
        self._spell(verb, header)

    def _spell(self, verb: str, header: str) -> None:
        whole = [f"<|{verb}|>{header}<|sep|>"]
        self.pieces += self.random.choice((whole, [f"<|{verb}|>{header}", ["sep"]], [[verb], f"{header}<|sep|>"]))

    def _leave(self) -> None:
        """Another channel, or the message's end, closes what is open."""
        self._end_call()
        if self.place in UNCLOSED:
            self.kinds[UNCLOSED[self.place]] += 1

    def _end_call(self) -> None:
        if self.is_value_open:
            self.kinds["unclosed_argument"] += 1
            self.is_value_open = False
        if self.is_call_open:
            self.kinds["unclosed_call"] += 1
            self._deliver()

    def _deliver(self) -> None:
        self.is_call_open = False
        if self.arguments is not None:
            self.words += [["arguments", self.num_calls - 1, self.arguments + ("" if self.arguments[-1:] == "}" else "{}")]]
            self.words.append(["end", self.num_calls - 1])
            self.arguments = None

    def _body(self, kind: str, *, plain_start: bool = False) -> str:
        """Text of a channel."""
        chunks = self.random.choices(TEXTS, k=self.random.randrange(5))
        if plain_start or "".join(chunks).startswith(FIRST_OPENERS):
            chunks.insert(0, "x")
        said = ""
        for chunk in chunks:
            self.pieces.append(chunk)
            said += chunk
            self._oddities("call", "think" if kind == "reasoning" else "response")
            if self._has("broken_marker"):
                self.pieces += [[self.random.choice(("open", "close"))], "!"]
                self.kinds["broken_marker"] += 1
                said += "!"
        self._say(kind, said)
        return said

    def _oddities(self, misplaced: str, channel: str | None) -> None:
        """What is dropped from inside a body."""
        if self._has("stray_control"):
            self.pieces.append([self.random.choice(("[PAD]", "[BOS]", "media_pad", "sep"))])
            self.kinds["stray_control"] += 1
        if self._has("unknown_marker"):
            self.pieces.append(["open", "final", "sep"])
            self.kinds["unknown_marker"] += 1
        if self._has("misplaced_marker"):
            self.pieces.append(["close", misplaced, "sep"])
            self.kinds["misplaced_marker"] += 1
        if channel is not None and self._has("reopened_channel"):
            self.pieces.append(["open", channel, "sep"])
            self.kinds["reopened_channel"] += 1
