"""`tool_choice` and `parallel_tool_calls` through openai-python: what is demanded is what comes, whatever the model would like."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

Target = Any  # of conftest


class GetWeather(BaseModel):
    """Get the weather of the next days in a city."""

    city: Literal["Paris", "Rome", "Oslo"]
    days: Annotated[int, Field(ge=1, le=7)]


class SetAlarm(BaseModel):
    """Set an alarm clock."""

    class Time(BaseModel):
        hour: Annotated[int, Field(ge=0, le=23)]
        minute: Literal[0, 15, 30, 45]

    time: Time
    loud: bool
    day: Literal["Saturday", "Sunday"] | None


MODELS: dict[str, type[BaseModel]] = {"GetWeather": GetWeather, "SetAlarm": SetAlarm}
TOOLS: Any = [openai.pydantic_function_tool(model) for model in MODELS.values()]
IDLE = "Good morning, my friend."  # no reason to call a tool, and no rule of the script
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@dataclass
class Answer:
    """What a client makes of an answer, whole or streamed: `calls` are id, name and arguments."""

    content: str
    calls: list[tuple[str, str, str]]
    finish: str


def ask(client: openai.OpenAI, target: Target, question: str, *, stream: bool, **fields: Any) -> Answer:
    body: dict[str, Any] = {"tools": TOOLS, "max_tokens": 600, "extra_body": target.OFF, **fields}
    body |= {"model": target.model, "messages": [{"role": "user", "content": question}], "temperature": 0, "stream": stream}
    answer = client.chat.completions.create(**body)
    if stream:
        return merged([chunk.choices[0] for chunk in answer])
    choice = answer.choices[0]
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    return Answer(choice.message.content or "", calls, choice.finish_reason)


def merged(choices: list[Any]) -> Answer:
    calls: dict[int, tuple[str, str, str]] = {}
    for call in [call for choice in choices for call in choice.delta.tool_calls or ()]:
        id, name, arguments = calls.get(call.index, (call.id, call.function.name, ""))
        calls[call.index] = (id, name, arguments + (call.function.arguments or ""))
    content = "".join(choice.delta.content or "" for choice in choices)
    return Answer(content, list(calls.values()), choices[-1].finish_reason)


def check_calls(answer: Answer, *names: str) -> None:
    """There are calls, each of one of the tools `names`, each with arguments that its schema allows."""
    assert "tool_calls" == answer.finish
    assert answer.calls
    assert len(answer.calls) == len({id for id, _, _ in answer.calls})
    for _, name, arguments in answer.calls:
        assert name in names
        MODELS[name].model_validate_json(arguments, strict=True)


@BOTH_WAYS
def test_required_brings_a_call_where_there_is_no_reason_for_one(client: openai.OpenAI, target: Target, stream: bool) -> None:
    check_calls(ask(client, target, IDLE, stream=stream, tool_choice="required"), *MODELS)


@BOTH_WAYS
def test_required_brings_a_call_after_reasoning(client: openai.OpenAI, target: Target, stream: bool) -> None:
    question = target.THINK if target.pid else IDLE  # which the model thinks about, but not for long
    answer = ask(client, target, question, stream=stream, tool_choice="required", extra_body={"thinking": {"type": "enabled"}})
    check_calls(answer, *MODELS)


@BOTH_WAYS
@pytest.mark.parametrize("name", MODELS)
def test_a_named_tool_is_the_one_that_is_called(client: openai.OpenAI, target: Target, name: str, stream: bool) -> None:
    choice = {"type": "function", "function": {"name": name}}
    check_calls(ask(client, target, IDLE, stream=stream, tool_choice=choice), name)


@BOTH_WAYS
def test_none_brings_no_call_where_there_is_reason_for_one(
    client: openai.OpenAI, target: Target, weather_tool: dict[str, Any], stream: bool
) -> None:
    question = target.WEATHER if target.pid else IDLE  # a rule is played whatever is demanded
    answer = ask(client, target, question, stream=stream, tool_choice="none", tools=[weather_tool], max_tokens=60)
    assert [] == answer.calls
    assert answer.finish in ("stop", "length")
    assert "<|" not in answer.content


@BOTH_WAYS
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_without_parallel_calls_there_is_one(
    client: openai.OpenAI, target: Target, weather_tool: dict[str, Any], choice: str, stream: bool
) -> None:
    options = {"tools": [weather_tool], "tool_choice": choice, "parallel_tool_calls": False}
    answer = ask(client, target, target.TWO_CITIES, stream=stream, **options)
    assert "tool_calls" == answer.finish
    assert [("get_weather", {"city": "Paris"})] == [(name, json.loads(arguments)) for _, name, arguments in answer.calls]


def test_parsed_arguments_are_models(client: openai.OpenAI, target: Target) -> None:
    messages: Any = [{"role": "user", "content": IDLE}]
    answer = client.chat.completions.parse(
        model=target.model, messages=messages, tools=TOOLS, tool_choice="required", temperature=0, extra_body=target.OFF
    )
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert all(isinstance(call.function.parsed_arguments, MODELS[call.function.name]) for call in calls)
