"""Answers of the chat API as clients read them, whole or put together from a stream, and whether they keep its rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Answer:
    """What came back. `calls`: tool and arguments as text, in order. `broken`: what no client could have read."""

    status: int = 200
    finish_reason: str | None = None
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    broken: str | None = None


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> Answer:
    """The answer, whole or merged from its deltas."""
    if not body["stream"]:
        response = await client.post("chat/completions", json=body)
        return _whole(response.json()) if response.status_code == 200 else Answer(response.status_code, content=response.text)
    async with client.stream("POST", "chat/completions", json=body) as response:
        if response.status_code != 200:
            return Answer(response.status_code, content=(await response.aread()).decode())
        return merged([line[6:] async for line in response.aiter_lines() if line.startswith("data: ")])


def _whole(body: dict[str, Any]) -> Answer:
    choice = body["choices"][0]
    message = choice["message"]
    calls = message.get("tool_calls")
    answer = Answer(200, choice["finish_reason"], message.get("content") or "")
    answer.calls = [(call["function"]["name"], call["function"]["arguments"]) for call in calls or ()]
    if calls is not None and not calls:
        answer.broken = "`tool_calls` is an empty list"
    elif len({call["id"] for call in calls or ()}) != len(answer.calls):
        answer.broken = "two calls have one id"
    return answer


def merged(frames: Sequence[str]) -> Answer:
    """The answer whose chunks are `frames`, put together as clients do. A stream that breaks its rules is `broken`."""
    answer = Answer()
    if not frames or frames[-1] != "[DONE]":
        answer.broken = f"the stream has no end, its last frame is {frames[-1] if frames else 'missing'}"
        return answer
    names: dict[int, str] = {}
    arguments: dict[int, list[str]] = {}
    reasons: list[str] = []
    for chunk in map(json.loads, frames[:-1]):
        for choice in chunk["choices"]:
            if reasons and choice["delta"]:
                answer.broken = "something follows the finish reason"
            if choice["finish_reason"] is not None:
                reasons.append(choice["finish_reason"])
            answer.content += choice["delta"].get("content") or ""
            for delta in choice["delta"].get("tool_calls") or ():
                index, function = delta["index"], delta["function"]
                if index not in names:
                    if index != len(names) or not delta.get("id") or not function.get("name"):
                        answer.broken = f"call {index} does not begin with its place, id and name: {delta}"
                    names[index] = function.get("name", "")
                elif index != len(names) - 1:
                    answer.broken = f"call {index} goes on after the next has begun"
                arguments.setdefault(index, []).append(function.get("arguments") or "")
    if len(reasons) != 1:
        answer.broken = f"the stream has {len(reasons)} finish reasons"
    answer.finish_reason = reasons[-1] if reasons else None
    answer.calls = [(names[index], "".join(arguments[index])) for index in sorted(names)]
    return answer
