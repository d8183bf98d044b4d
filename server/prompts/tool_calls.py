"""Tool calls of earlier assistant messages, and the results that answer them.

On the wire a call has a name and a position, no id: results are bound to calls by their order, which is restored here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from server.errors import InvalidRequestError
from server.prompts.xtml import Writer
from server.quoting import shown

Message = Mapping[str, Any]
Call = Mapping[str, Any]


class PlacedMessage(NamedTuple):
    """A message where the model is to see it.

    `param`: its path in the request. `tool` and `number`, of a tool message: the tool it is the result of, and its place, from 1,
    among the results since the last assistant message.
    """

    message: Message
    param: str
    tool: str = ""
    number: int = 0


def write_calls(writer: Writer, calls: Sequence[Call], param: str) -> None:
    """The tools channel of an assistant message. Raises `InvalidRequestError` for arguments that are JSON but not an object."""
    if not calls:
        return
    writer.open("tools")
    for index, call in enumerate(calls):
        writer.open("call", ("tool", _name(call)), ("index", str(index + 1)))
        _write_arguments(writer, call["function"].get("arguments"), f"{param}[{index}].function.arguments")
        writer.close("call")
    writer.close("tools")


def place(messages: Sequence[Message]) -> Iterator[PlacedMessage]:
    """`messages` with each run of tool messages in the order of the calls, each with its tool's name.

    A result belongs to the call of the last assistant message with its `tool_call_id`; `name:0` is taken for the first call, too.
    A run with an id that none of the calls has stays in the order it was sent; there, a result of unknown id is given the name it
    has, or that of the call in its place.
    Raises `InvalidRequestError` for a result that can't be given a tool.
    """
    calls: Sequence[Call] = ()
    num_results = 0
    for is_tool, run in groupby(enumerate(messages), key=lambda item: item[1]["role"] == "tool"):
        if is_tool:
            for placed in _place_results(list(run), calls, num_results):
                num_results = placed.number
                yield placed
            continue
        for number, message in run:
            if message["role"] == "assistant":
                calls = message.get("tool_calls") or ()
                num_results = 0
            yield PlacedMessage(message, f"messages[{number}]")


def _place_results(run: list[tuple[int, Message]], calls: Sequence[Call], num_before: int) -> Iterator[PlacedMessage]:
    """One run of tool messages, given as (number in the request, message), behind `num_before` others that answer `calls`."""
    positions = _positions(calls)
    found = [(positions.get(str(message.get("tool_call_id"))), number, message) for number, message in run]
    if all(position is not None for position, _, _ in found):
        found.sort(key=lambda item: item[0] or 0)
    for index, (position, number, message) in enumerate(found, start=num_before + 1):
        param = f"messages[{number}]"
        if position is not None:
            tool = _name(calls[position])
        elif message.get("name"):
            tool = str(message["name"])
        elif index <= len(calls):
            tool = _name(calls[index - 1])
        else:
            raise InvalidRequestError(
                f"`{shown(message.get('tool_call_id'))}` is no tool call of the assistant message before: send the call's `id`",
                param=f"{param}.tool_call_id",
            )
        yield PlacedMessage(message, param, tool, index)


def _positions(calls: Sequence[Call]) -> dict[str, int]:
    """Id of each call -> its position from 0. Where an id comes twice, the first has it."""
    positions = {f"{_name(call)}:{position}": position for position, call in enumerate(calls)}
    for position in reversed(range(len(calls))):
        if calls[position].get("id") is not None:
            positions[str(calls[position]["id"])] = position
    return positions


def _name(call: Call) -> str:
    return str(call["function"]["name"])


def _write_arguments(writer: Writer, arguments: object, param: str) -> None:
    """One `argument` element a key; text that is not JSON becomes one `json` element, as it is."""
    if isinstance(arguments, str):
        if not arguments.strip():
            return
        try:
            written = _typed_arguments(json.loads(arguments), param)
        except (ValueError, RecursionError):
            writer.element("json", ("type", "object"), text=arguments)
            return
    else:
        written = _typed_arguments(arguments if arguments is not None else {}, param)
    for key, kind, text in written:
        writer.element("argument", ("key", key), ("type", kind), text=text)


def _typed_arguments(arguments: object, param: str) -> list[tuple[str, str, str]]:
    """Key, type and text of each argument. Raises `ValueError` and `RecursionError` where a value has no JSON, as `NaN`."""
    if not isinstance(arguments, Mapping):
        raise InvalidRequestError("the arguments of a tool call are a JSON object: send `{…}`", param=param)
    return [(str(key), *_typed(value)) for key, value in arguments.items()]


def _typed(value: object) -> tuple[str, str]:
    """Type and text of a value. Strings are as they are, anything else is JSON as Python writes it."""
    if isinstance(value, str):
        return "string", value
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if isinstance(value, bool):
        return "boolean", text
    if value is None:
        return "null", text
    if isinstance(value, int | float):
        return "number", text
    return ("object" if isinstance(value, Mapping) else "array"), text
