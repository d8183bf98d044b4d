"""Checks of tool declarations, `tool_choice` and `response_format`, shared by every place that takes them.

The objects stay as the client sent them: the model is shown all of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from server.errors import InvalidRequestError
from server.quoting import shown

MAX_NAME_CHARS = 256
MAX_TOOLS = 1024
TOOL_CHOICES = ("auto", "required", "none")
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
RESPONSE_FORMATS = ("text", "json_object", "json_schema")


def _want_object(value: Any, param: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        what = "is missing" if value is None else f"is `{shown(value)}`"
        raise InvalidRequestError(f"`{param}` {what}; it must be an object", param=param)
    return value


def check_tools(tools: Sequence[Mapping[str, Any]], where: str, names: set[str]) -> None:
    """Each tool is `{"type": "function", "function": {"name": …}}`, and names differ. Raises `InvalidRequestError`.

    `names`: of the tools that the request declares elsewhere; those of `tools` are added.
    """
    if (num_tools := len(names) + len(tools)) > MAX_TOOLS:
        raise InvalidRequestError(
            f"with `{where}` the request has {num_tools} tools; at most {MAX_TOOLS} are allowed", param=where
        )
    for index, tool in enumerate(tools):
        param = f"{where}[{index}]"
        if tool.get("type") != "function":
            raise InvalidRequestError(
                f"`{param}.type` is `{shown(tool.get('type'))}`; it must be `function`", param=f"{param}.type"
            )
        if "function" not in tool and "name" in tool:
            raise InvalidRequestError(
                f"`{param}.function` is missing; put `name`, `description` and `parameters` into it, as in "
                '`{"type": "function", "function": {"name": …}}`',
                param=f"{param}.function",
            )
        function = _want_object(tool.get("function"), f"{param}.function")
        names.add(_check_function(function, f"{param}.function", names))


def _check_function(function: Mapping[str, Any], param: str, names: Collection[str]) -> str:
    """The function's name, which is none of `names`."""
    name = function.get("name")
    where = f"{param}.name"
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(f"`{where}` is missing; name the function", param=where)
    if len(name) > MAX_NAME_CHARS:
        raise InvalidRequestError(f"`{where}` has {len(name)} characters; at most {MAX_NAME_CHARS} are allowed", param=where)
    if found := _CONTROL_CHARACTER.search(name):
        raise InvalidRequestError(
            f"`{where}` has the control character U+{ord(found[0]):04X}; names may have any other characters", param=where
        )
    if name in names:
        raise InvalidRequestError(f"`{where}` repeats `{shown(name)}`; names must differ", param=where)
    if not isinstance(function.get("description"), str | None):
        where = f"{param}.description"
        raise InvalidRequestError(f"`{where}` is `{shown(function['description'])}`; it must be text", param=where)
    _check_strict(function, param)
    if function.get("parameters") is not None:
        _want_object(function["parameters"], f"{param}.parameters")
    return name


def _check_strict(of: Mapping[str, Any], param: str) -> None:
    if not isinstance(of.get("strict"), bool | None):
        raise InvalidRequestError(
            f"`{param}.strict` is `{shown(of['strict'])}`; it must be true or false", param=f"{param}.strict"
        )


def named_choice(choice: str | Mapping[str, Any] | None) -> str | None:
    """The function's name where `tool_choice` names one, else None."""
    if isinstance(choice, Mapping):
        name = choice["function"]["name"]
        return str(name)
    return None


def check_tool_choice(choice: str | Mapping[str, Any] | None, names: Collection[str]) -> None:
    """`auto`, `required`, `none`, or an object naming a function. `names`: those declared. Raises `InvalidRequestError`."""
    if choice is None:
        return
    if isinstance(choice, str):
        if choice not in TOOL_CHOICES:
            raise InvalidRequestError(
                f"`tool_choice` is `{shown(choice)}`; it must be `auto`, `required`, `none` or name a function",
                param="tool_choice",
            )
        if choice == "required" and not names:
            raise InvalidRequestError("`tool_choice` is `required` but `tools` is empty; declare a tool", param="tool_choice")
        return
    kind = choice.get("type")
    if kind == "allowed_tools":
        raise InvalidRequestError(
            "`tool_choice.type` is `allowed_tools`, which is not supported; leave the other tools out of `tools`",
            param="tool_choice.type",
        )
    if kind != "function":
        hint = f"; send the text `{shown(kind)}` alone" if kind in TOOL_CHOICES else ""
        raise InvalidRequestError(f"`tool_choice.type` is `{shown(kind)}`; it must be `function`{hint}", param="tool_choice.type")
    name = _want_object(choice.get("function"), "tool_choice.function").get("name")
    if not isinstance(name, str) or name not in names:
        raise InvalidRequestError(
            f"`tool_choice.function.name` is `{shown(name)}`, which is not in `tools`", param="tool_choice.function.name"
        )


def check_response_format(response_format: Mapping[str, Any] | None) -> None:
    """`text`, `json_object` or `json_schema` with a name and a schema. Raises `InvalidRequestError`."""
    if response_format is None:
        return
    kind = response_format.get("type")
    if kind not in RESPONSE_FORMATS:
        raise InvalidRequestError(
            f"`response_format.type` is `{shown(kind)}`; it must be `text`, `json_object` or `json_schema`",
            param="response_format.type",
        )
    if kind != "json_schema":
        return
    where = "response_format.json_schema"
    schema = _want_object(response_format.get("json_schema"), where)
    if not isinstance(schema.get("name"), str) or not schema["name"]:
        raise InvalidRequestError(f"`{where}.name` is missing; name the schema", param=f"{where}.name")
    _want_object(schema.get("schema"), f"{where}.schema")
    _check_strict(schema, where)
