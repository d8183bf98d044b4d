"""How large the JSON in a request may be that has to be written anew for the model.

Role: bounds for tools, schemas and arguments. They are read and written by Python's `json`, which lets nobody else run meanwhile:
two megabytes of numbers take it some 80 ms. Texts have no such bound: encoding them lets others run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from server.errors import InvalidRequestError
from server.protocol.messages import Message

MAX_JSON_BYTES: Final = 2 * 1024 * 1024
"""Of one tool, one response format, or the arguments of one call."""

MAX_TOOLS_BYTES: Final = 4 * 1024 * 1024
"""Of all tools together."""

_encode = msgspec.json.encode


def check_sizes(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], response_format: Mapping[str, Any] | None
) -> None:
    """Raises `InvalidRequestError` for what is too large. Needs no call for a body of at most `MAX_JSON_BYTES`."""
    left = _check_tools(tools, "tools", MAX_TOOLS_BYTES)
    _check(response_format, "response_format", "schema")
    for index, message in enumerate(messages):
        if declared := message.get("tools"):
            left = _check_tools(declared, f"messages[{index}].tools", left)
        for number, call in enumerate(message.get("tool_calls") or ()):
            _check(call["function"].get("arguments"), f"messages[{index}].tool_calls[{number}].function.arguments", "arguments")


def _check_tools(tools: Sequence[Mapping[str, Any]], where: str, left: int) -> int:
    """How many bytes are left for other tools."""
    for index, tool in enumerate(tools):
        left -= _check(tool, f"{where}[{index}]", "tool")
        if left < 0:
            raise InvalidRequestError(
                f"with `{where}` the tools have more than {MAX_TOOLS_BYTES} bytes; declare fewer", param=where
            )
    return left


def _check(value: Any, param: str, what: str) -> int:
    """Bytes of `value` as JSON; of a text, its characters."""
    try:
        size = len(value) if isinstance(value, str) else len(_encode(value))
    except RecursionError:
        raise InvalidRequestError(f"`{param}` is nested too deep; use fewer levels", param=param) from None
    if size > MAX_JSON_BYTES:
        raise InvalidRequestError(f"`{param}` has {size} bytes; at most {MAX_JSON_BYTES} are allowed for one {what}", param=param)
    return size
