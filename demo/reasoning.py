"""What the model is taught to think: the same decision in one short sentence (low), with its reason (high), or step by step
(max).

With more effort the request is repeated first and the decision comes after it: a small model decides better next to what it
decides on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from demo.library import Tool
from demo.tools import Call, optional_left_out
from demo.values import joined, spoken
from server.protocol.reasoning import Effort

_LONGEST_ECHO_CHARS = 150


def _said(text: str) -> str:
    return f"The user says: {text}" if len(text) <= _LONGEST_ECHO_CHARS else "The user sent a long text."


def about_plain(text: str, effort: Effort, tools: Sequence[Tool], *, small_talk: bool = False) -> str:
    """Before an answer in words. `tools`: those that could be called and are not."""
    kind = "This is small talk" if small_talk else "I can answer this myself"
    tail = ", no tool is needed." if tools else "."
    if effort == "low":
        return "I answer this myself."
    if effort == "high":
        return f"{_said(text)}\n{kind}{tail}"
    tone = "I will be friendly and short." if small_talk else "I will give a clear answer."
    return f"{_said(text)}\n{kind}{tail} {tone}"


def _arguments(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{key} is {spoken(value)}" for key, value in arguments.items()) or "no arguments"


def about_calls(text: str, calls: Sequence[Call], effort: Effort, tools: Sequence[Tool]) -> str:
    """Before tool calls: how many, and each with its arguments."""
    names = joined(list(dict.fromkeys(name for name, _ in calls)))
    if effort == "low":
        return f"I need {names}." if len(calls) == 1 else f"I need {len(calls)} calls."
    if len(calls) == 1:
        name, arguments = calls[0]
        steps = f"I need {name}: {_arguments(arguments)}."
    else:
        steps = f"I need {len(calls)} calls."
        for number, (name, arguments) in enumerate(calls, 1):
            steps += f"\n{number}. {name}: {_arguments(arguments)}."
    if effort == "high":
        return f"{_said(text)}\n{steps}"
    known = {tool.name: tool for tool in tools}
    missing = optional_left_out(known[calls[0][0]], calls[0][1])
    if len(calls) > 1:
        return f"{_said(text)}\n{steps}\nI will call them now."
    left_out = f" Not given: {', '.join(missing)}." if missing else ""
    return f"{_said(text)}\n{steps}{left_out}\nI will call it now."


def about_result(name: str, result: str, effort: Effort) -> str:
    """Before telling the user what came back."""
    if effort == "low":
        return "I have the result."
    shown = result if len(result) < _LONGEST_ECHO_CHARS else "a long text"
    if effort == "high":
        return f"{name} returned: {shown}"
    return f"{name} returned: {shown}\nI will tell the user what it says."


def about_refusal(text: str, effort: Effort) -> str:
    """Where tools must not be called."""
    return "I must not call tools now." if effort == "low" else f"{_said(text)}\nI must not call tools now, so I answer in words."


def about_json(text: str, effort: Effort, keys: Sequence[str]) -> str:
    """Before a JSON answer."""
    if effort == "low":
        return "I answer in raw JSON."
    return f"{_said(text)}\nI answer in raw JSON with {joined(list(keys))}."
