"""Requests with something else in a random place: never an error of ours, and the error's path leads to what was changed."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.protocol.chat import parse
from server.protocol.sampling import apply_sampling_rule
from server.protocol.schemas import check_schemas
from server.schemas.library import SchemaLibrary

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "pattern": "^[A-Z]"},
        "days": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "uniqueItems": True},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"tag": {"enum": ["a", "b"]}},
}
REQUEST: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "x"},
        {"role": "developer", "tools": [{"type": "function", "function": {"name": "g", "parameters": PARAMETERS}}]},
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "Ada"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "r",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "x", "tool_call_id": "a"},
        {"role": "assistant", "content": "x", "partial": True},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "strict": True, "parameters": PARAMETERS}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": False,
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": PARAMETERS}},
    "reasoning_effort": "low",
    "thinking": {"type": "enabled", "keep": "all", "effort": "high"},
    "chat_template_kwargs": {"thinking": True, "preserve_thinking": True, "thinking_effort": "high"},
    "stream": True,
    "stream_options": {"include_usage": True},
    "n": 1,
    "max_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.95,
    "top_k": -1,
    "min_p": 0,
    "seed": 3,
    "stop": ["a", "b"],
    "logit_bias": {},
    "logprobs": True,
    "top_logprobs": 2,
}
OTHER: list[Any] = [
    None, True, False, 0, 1, -1, 2.5, 10**30, 1e300, "", "x", "auto", "a\x00b", "é" * 300, [], {}, [[]], [None], ["x"], [{}], {"a": None},
    {"type": "function"}, {"$ref": "#/no"}, {"$ref": "http://localhost/x"}, {"type": "text"}, [{"type": "text"}],
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def mutated(chance: random.Random) -> tuple[dict[str, Any], list[str]]:
    """A request with one to three changes, and the paths of the changes in the API's form."""
    request = copy.deepcopy(REQUEST)
    changed = []
    for _ in range(chance.randint(1, 3)):
        path = chance.choice(list(places(request)))
        holder = request
        for key in path[:-1]:
            holder = holder[key]
        if chance.random() < 0.2:
            del holder[path[-1]]
        else:
            holder[path[-1]] = copy.deepcopy(chance.choice(OTHER))
        changed.append("".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)[1:])
    return request, changed


def error_of(request: dict[str, Any]) -> InvalidRequestError | None:
    """What is wrong first, None where all is well; any other exception is a fault."""
    try:
        wanted = parse(json.dumps(request).encode())
        check_schemas(wanted, SchemaLibrary())
        apply_sampling_rule(wanted, "pin")
        apply_sampling_rule(wanted, "moonshot")
    except InvalidRequestError as error:
        return error
    return None


def leads_to(request: Any, param: str) -> bool:
    """Whether all of `param` but its last step is there, and that is the place for such a step."""
    steps = [int(step[1:-1]) if step.startswith("[") else step for step in re.findall(r"[^.\[\]]+|\[\d+\]", param)]
    for step in steps[:-1]:
        try:
            request = request[step]
        except (KeyError, IndexError, TypeError):
            return False
    return isinstance(request, list if isinstance(steps[-1], int) else dict)


@pytest.mark.parametrize("num", [4000, pytest.param(200_000, marks=pytest.mark.long)])
def test_every_mistake_is_a_clear_400_with_a_path_that_exists(num: int) -> None:
    chance = random.Random(num)
    num_refused = 0
    for _ in range(num):
        request, changed = mutated(chance)
        if (error := error_of(request)) is None:
            continue
        num_refused += 1
        assert error.param is not None, (changed, error.message)
        assert leads_to(request, error.param), (changed, error.param, error.message)
        assert f"`{error.param}" in error.message, (error.param, error.message)
        assert len(error.message) < 500
    assert num / 2 < num_refused < num


def test_the_request_itself_is_fine() -> None:
    assert error_of(REQUEST) is None
