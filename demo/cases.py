"""The questions of the evaluation, which are in `cases.yaml`, as conversations that the gateway could get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from server.prompts.base import Conversation
from server.protocol.reasoning import Effort

Message = Mapping[str, Any]


@dataclass(slots=True, frozen=True)
class Case:
    """One question and what a right answer has. `effort` None: thinking off.

    `calls`: (tool, arguments), in order; empty if none is due. `behind`: messages after the question, as a call and its result.
    `json_answer`: the object that the text must be.
    """

    group: str
    question: str
    effort: Effort | None
    tools: Sequence[Message] = ()
    calls: Sequence[tuple[str, Message]] = ()
    contains: Sequence[str] = ()
    json_answer: Message | None = None
    schema: Message | None = None
    history: Sequence[Message] = ()
    behind: Sequence[Message] = ()
    tool_choice: Literal["auto", "required", "none"] = "auto"
    system: str | None = None

    def conversation(self) -> Conversation:
        """The case as the gateway gets it."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        response_format: dict[str, Any] | None = None
        if self.schema is not None:
            keys = list(self.schema)
            schema = {"type": "object", "properties": self.schema, "required": keys, "additionalProperties": False}
            response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        elif self.json_answer is not None:
            response_format = {"type": "json_object"}
        return Conversation(
            messages=[*system, *self.history, {"role": "user", "content": self.question}, *self.behind],
            tools=self.tools,
            tool_choice=self.tool_choice,
            thinking=self.effort is not None,
            effort=self.effort,
            response_format=response_format,
        )


def _case(entry: dict[str, Any], declared: Mapping[str, Message]) -> Case:
    effort = entry.pop("effort")
    return Case(
        effort=None if effort == "off" else effort,
        tools=[declared[name] for name in entry.pop("tools", [])],
        calls=[pair for call in entry.pop("calls", []) for pair in call.items()],
        json_answer=entry.pop("json", None),
        **entry,
    )


def read_cases(path: Path) -> list[Case]:
    """The cases in the YAML file `path`."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    declared = {name: {"type": "function", "function": {"name": name, **tool}} for name, tool in content["tools"].items()}
    return [_case(entry, declared) for entry in content["cases"]]


CASES = read_cases(Path(__file__).with_name("cases.yaml"))
