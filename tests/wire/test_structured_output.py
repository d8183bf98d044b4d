"""`response_format` through openai-python: the answer is JSON of the form that was asked for, written compactly."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

Target = Any  # of conftest
QUESTION = "Suggest a journey."  # no rule of the script
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


class Hotel(BaseModel):
    stars: Annotated[int, Field(ge=1, le=5)]
    breakfast: bool


class Journey(BaseModel):
    city: Literal["Paris", "Rome", "Oslo"]
    days: Annotated[int, Field(ge=1, le=14)]
    sights: Annotated[list[Literal["museum", "park", "opera"]], Field(min_length=1, max_length=3)]
    hotel: Hotel | None


SCHEMA = {"type": "json_schema", "json_schema": {"name": "journey", "schema": Journey.model_json_schema()}}


def options(target: Target, question: str = QUESTION, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"model": target.model, "messages": messages, "temperature": 0, "max_tokens": 600, "extra_body": target.OFF, **fields}


def said(client: openai.OpenAI, body: dict[str, Any], *, stream: bool) -> tuple[str, str]:
    """Content and finish reason."""
    if not stream:
        choice = client.chat.completions.create(**body).choices[0]
        return choice.message.content or "", choice.finish_reason
    choices = [chunk.choices[0] for chunk in client.chat.completions.create(**body, stream=True)]
    return "".join(choice.delta.content or "" for choice in choices), choices[-1].finish_reason


def check_journey(content: str) -> None:
    """Valid, compact, and with its keys in the order of the schema."""
    Journey.model_validate_json(content, strict=True)
    assert not re.search(r"\s", re.sub(r'"(?:[^"\\]|\\.)*"', '""', content))
    assert list(Journey.model_fields) == list(json.loads(content))


@BOTH_WAYS
def test_a_schema_is_held_without_being_strict(client: openai.OpenAI, target: Target, stream: bool) -> None:
    content, finish = said(client, options(target, response_format=SCHEMA), stream=stream)
    assert "stop" == finish
    check_journey(content)


@BOTH_WAYS
def test_a_schema_is_held_after_reasoning(client: openai.OpenAI, target: Target, stream: bool) -> None:
    question = target.THINK if target.pid else QUESTION  # which the model thinks about, but not for long
    body = options(target, question, response_format=SCHEMA, extra_body={"thinking": {"type": "enabled"}})
    content, finish = said(client, body, stream=stream)
    assert "stop" == finish
    check_journey(content)


def test_parse_gives_a_model(client: openai.OpenAI, target: Target) -> None:
    message = client.chat.completions.parse(**options(target, response_format=Journey)).choices[0].message
    assert isinstance(message.parsed, Journey)
    assert message.refusal is None
    check_journey(message.content or "")


def test_the_stream_helper_parses_what_has_come(client: openai.OpenAI, target: Target) -> None:
    with client.chat.completions.stream(**options(target, response_format=Journey)) as stream:
        parsed = [event.parsed for event in stream if event.type == "content.delta" and event.parsed is not None]
        message = stream.get_final_completion().choices[0].message
    assert isinstance(message.parsed, Journey)
    assert message.parsed.model_dump() == parsed[-1]
    check_journey(message.content or "")


def test_an_answer_that_was_cut_off_is_said_to_be(client: openai.OpenAI, target: Target) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**options(target, response_format=Journey, max_tokens=3))


@BOTH_WAYS
def test_a_json_object(client: openai.OpenAI, target: Target, stream: bool) -> None:
    content, finish = said(client, options(target, target.JSON, response_format={"type": "json_object"}), stream=stream)
    assert "stop" == finish
    assert "Paris" in json.loads(content).values()


@BOTH_WAYS
def test_a_schema_beside_tools_that_are_not_called(
    client: openai.OpenAI, target: Target, weather_tool: dict[str, Any], stream: bool
) -> None:
    body = options(target, response_format=SCHEMA, tools=[weather_tool], tool_choice="none")
    content, finish = said(client, body, stream=stream)
    assert "stop" == finish
    check_journey(content)
