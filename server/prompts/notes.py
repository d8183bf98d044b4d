"""System messages that the gateway writes for the model: tools, effort, tool choice, response format.

Invariant: the wording is what the model was trained on and must match to the byte.
Source: Moonshot's published encoder for Kimi K3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from server.errors import InvalidRequestError
from server.prompts.xtml import Writer

_TOOLS: Final = "# Tools\nHere are the available tools, described in JSONSchema.\n\n"
_MORE_TOOLS: Final = (
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n"
)
_EFFORT: Final = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort={effort}`."
)
_TOOL_CHOICE: Final = {
    "required": "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
    "none": "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
}
_RESPONSE_FORMAT: Final = (
    "The system is invoked with `response_format={type}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting."
)
_SCHEMA: Final = "\nThe JSON data must match the following schema:\n"

_NOTE_TYPES: Final = ("tool-declare", "thinking-effort", "tool-choice", "response-format")

CONSTANT_TEXTS: Final = (
    *_NOTE_TYPES,
    *(_EFFORT.format(effort=effort) for effort in ("low", "high", "max")),
    *_TOOL_CHOICE.values(),
    _RESPONSE_FORMAT.format(type="json_object"),
)
"""Whole texts of notes that come often, worth encoding once."""


def write_tools(writer: Writer, tools: Sequence[Mapping[str, Any]], param: str, *, later: bool = False) -> None:
    """Declare `tools`; `later`: in the middle of the conversation, in addition to what is there.

    The order of an object's keys makes no difference to the prompt, and so none to the prefix cache; the order of the tools does.
    Raises `InvalidRequestError` for the field `param` where the tools are nested too deep to be written.
    """
    _write(writer, "tool-declare", (_MORE_TOOLS if later else _TOOLS) + _fenced(tools, param))


def write_effort(writer: Writer, effort: str) -> None:
    """Say how much to think."""
    _write(writer, "thinking-effort", _EFFORT.format(effort=effort))


def write_tool_choice(writer: Writer, tool_choice: str) -> None:
    """Say whether tools must or must not be called; `auto` needs no words."""
    if tool_choice in _TOOL_CHOICE:
        _write(writer, "tool-choice", _TOOL_CHOICE[tool_choice])


def write_response_format(writer: Writer, response_format: Mapping[str, Any] | None) -> None:
    """Say that the answer is to be JSON, and of which schema; a text answer needs no words.

    The schema is `json_schema.schema`, or where that is missing `json_schema.json_schema`, or else `json_schema` itself.
    """
    kind = (response_format or {}).get("type")
    if kind == "json_object":
        _write(writer, "response-format", _RESPONSE_FORMAT.format(type=kind))
    elif kind == "json_schema":
        schema = (response_format or {}).get("json_schema")
        if isinstance(schema, Mapping):
            schema = schema.get("schema", schema.get("json_schema", schema))
        body = _RESPONSE_FORMAT.format(type=kind) + _SCHEMA + _fenced(schema, "response_format.json_schema")
        _write(writer, "response-format", body)


def _write(writer: Writer, kind: str, body: str) -> None:
    writer.open("message", ("role", "system"), ("type", kind))
    writer.text(body)
    writer.close_message()


def _fenced(value: object, param: str) -> str:
    """`value` as compact JSON with sorted keys in a code fence."""
    try:
        # Item by item, because each call lets nobody else run.
        compact = f"[{','.join(map(_compact, value))}]" if isinstance(value, list) else _compact(value)
    except RecursionError:
        raise InvalidRequestError(f"`{param}` is nested too deep: use fewer levels", param=param) from None
    return f"```json\n{compact}\n```"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
