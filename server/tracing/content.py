"""What a client and the model said, for traces: kept only where `tracing.record_content` asks for it.

Invariant: what is kept of one request is bounded, and has no images.
Source: OpenTelemetry's semantic conventions for generative AI, `gen_ai.input.messages` and `gen_ai.output.messages`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Protocol, TypeVar

import orjson

from server.events import ContentDelta, Event, Finish, ReasoningDelta, ToolCallArguments, ToolCallStart

MAX_CHARS: Final = 32_768
"""Of each of the two sides."""


class Said(Protocol):
    """What one choice said; `server.job.Output` is one."""

    choice: int
    events: list[Event]


O = TypeVar("O", bound=Said)  # noqa: E741


class _Room:
    """Characters that are left. What does not fit is cut, and the cut is marked."""

    def __init__(self) -> None:
        self.left = MAX_CHARS

    def cut(self, text: str) -> str:
        kept = text[: self.left]
        self.left -= len(kept)
        return kept if len(kept) == len(text) else kept + "…"


class Content:
    """Of one request."""

    def __init__(self) -> None:
        self._input = ""
        self._room = _Room()
        self._parts: dict[int, list[dict[str, Any]]] = {}
        self._reasons: dict[int, str] = {}

    def asked(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """The conversation, in OpenAI's shape, checked."""
        room = _Room()
        said = [{"role": message["role"], "parts": _parts_of(message, room)} for message in messages if room.left > 0]
        self._input = orjson.dumps(said).decode()

    async def hear(self, outputs: AsyncGenerator[O, None]) -> AsyncGenerator[O, None]:
        """`outputs`, noting what they say."""
        async with aclosing(outputs) as said:
            async for output in said:
                for event in output.events:
                    self._note(output.choice, event)
                yield output

    def attributes(self) -> dict[str, str]:
        """Both sides, as attributes of the request's span."""
        found = {"gen_ai.input.messages": self._input} if self._input else {}
        if self._parts or self._reasons:
            choices = sorted(self._parts.keys() | self._reasons.keys())
            said = [
                {"role": "assistant", "parts": self._joined(choice), "finish_reason": self._reasons.get(choice, "error")}
                for choice in choices
            ]
            found["gen_ai.output.messages"] = orjson.dumps(said).decode()
        return found

    def _note(self, choice: int, event: Event) -> None:
        if isinstance(event, Finish):
            self._reasons[choice] = "tool_call" if event.reason == "tool_calls" else event.reason.value
        elif isinstance(event, ReasoningDelta):
            self._add(choice, "reasoning", "content", event.text)
        elif isinstance(event, ContentDelta):
            self._add(choice, "text", "content", event.text)
        elif isinstance(event, ToolCallStart):
            self._parts.setdefault(choice, []).append({"type": "tool_call", "name": self._room.cut(event.name), "arguments": []})
        elif isinstance(event, ToolCallArguments):
            self._add(choice, "tool_call", "arguments", event.fragment)

    def _add(self, choice: int, kind: str, name: str, text: str) -> None:
        parts = self._parts.setdefault(choice, [])
        if not parts or parts[-1]["type"] != kind:
            parts.append({"type": kind, name: []})
        if self._room.left > 0:
            parts[-1][name].append(self._room.cut(text))

    def _joined(self, choice: int) -> list[dict[str, Any]]:
        parts = self._parts.get(choice, [])
        return [{key: "".join(of) if isinstance(of, list) else of for key, of in part.items()} for part in parts]


def _parts_of(message: Mapping[str, Any], room: _Room) -> list[dict[str, Any]]:
    """What one message says."""
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    said: list[dict[str, Any]] = []
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        said.append({"type": "reasoning", "content": room.cut(reasoning)})
    for part in parts:
        if part["type"] != "text":
            said.append({"type": "uri", "modality": "image"})  # neither pixels nor where they are
        elif message["role"] == "tool":
            result = room.cut(part["text"])
            said.append({"type": "tool_call_response", "id": room.cut(message.get("tool_call_id") or ""), "response": result})
        else:
            said.append({"type": "text", "content": room.cut(part["text"])})
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function.get("arguments") or ""
        text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
        said.append({"type": "tool_call", "name": room.cut(function["name"]), "arguments": room.cut(text)})
    return said
