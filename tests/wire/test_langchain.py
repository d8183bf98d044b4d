"""LangChain's `ChatOpenAI` against both engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

Target = Any  # of conftest


@tool
def get_weather(city: str) -> str:
    """Get the weather forecast for a city."""
    return f"Sunny in {city}, 21 degrees."


@pytest.fixture
def model(target: Target) -> Iterator[ChatOpenAI]:
    with httpx.Client(timeout=120) as http:
        yield ChatOpenAI(
            model=target.model,
            base_url=target.base_url,
            api_key=target.key,
            temperature=0,
            max_retries=0,
            stream_usage=True,
            extra_body=target.OFF,
            http_client=http,
        )


def merged(chunks: list[Any]) -> AIMessageChunk:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert isinstance(whole, AIMessageChunk)
    return whole


def test_invoke(model: ChatOpenAI, target: Target) -> None:
    answer = model.invoke(target.CAPITAL)
    assert isinstance(answer, AIMessage)
    assert "Paris" in answer.content
    assert "stop" == answer.response_metadata["finish_reason"]
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["total_tokens"] == answer.usage_metadata["input_tokens"] + answer.usage_metadata["output_tokens"]


def test_stream_is_invoke_in_pieces(model: ChatOpenAI, target: Target) -> None:
    whole = model.invoke(target.CAPITAL)
    chunks = list(model.stream(target.CAPITAL))
    assert len(chunks) > 4
    streamed = merged(chunks)
    assert whole.content == streamed.content
    assert whole.usage_metadata is not None
    assert streamed.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == streamed.usage_metadata["output_tokens"]
    assert whole.usage_metadata["input_tokens"] == streamed.usage_metadata["input_tokens"]


async def test_the_async_client(target: Target) -> None:
    async with httpx.AsyncClient(timeout=120) as http:
        model = ChatOpenAI(
            model=target.model, base_url=target.base_url, api_key=target.key, temperature=0, extra_body=target.OFF,
            http_async_client=http, http_client=httpx.Client(),
        )  # fmt: skip
        answer = await model.ainvoke(target.CAPITAL)
        chunks = [chunk async for chunk in model.astream(target.CAPITAL)]
        model.http_client.close()
    assert "Paris" in answer.content
    assert answer.content == merged(chunks).content


def test_parallel_calls_and_their_results(model: ChatOpenAI, target: Target) -> None:
    bound = model.bind_tools([get_weather], parallel_tool_calls=True)
    question = HumanMessage(target.TWO_CITIES)
    called = bound.invoke([question])
    assert [("get_weather", "Paris"), ("get_weather", "Rome")] == [(c["name"], c["args"]["city"]) for c in called.tool_calls]
    results = [get_weather.invoke(call) for call in called.tool_calls]
    assert all(isinstance(result, ToolMessage) for result in results)
    answer = bound.invoke([question, called, *results])
    assert [] == answer.tool_calls
    assert answer.content


def test_streamed_calls(model: ChatOpenAI, target: Target) -> None:
    streamed = merged(list(model.bind_tools([get_weather]).stream(target.WEATHER)))
    assert [("get_weather", {"city": "Paris"})] == [(call["name"], call["args"]) for call in streamed.tool_calls]
    assert [] == streamed.invalid_tool_calls
    assert "tool_calls" == streamed.response_metadata["finish_reason"]


def test_structured_output(model: ChatOpenAI, target: Target) -> None:
    schema = {
        "title": "City",
        "type": "object",
        "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
        "required": ["city", "country"],
        "additionalProperties": False,
    }
    answer = model.with_structured_output(schema, method="json_schema").invoke(target.JSON)
    assert "Paris" == answer["city"]
