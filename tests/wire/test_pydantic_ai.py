"""pydantic-ai's agents against both engines."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from pydantic_ai import Agent, ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

Target = Any  # of conftest


@pytest.fixture
def model(async_client: openai.AsyncOpenAI, target: Target) -> OpenAIChatModel:
    settings = ModelSettings(temperature=0, extra_body=target.OFF)
    return OpenAIChatModel(target.model, provider=OpenAIProvider(openai_client=async_client), settings=settings)


async def test_a_run(model: OpenAIChatModel, target: Target) -> None:
    result = await Agent(model).run(target.CAPITAL)
    assert "Paris" in result.output


async def test_a_streamed_run(model: OpenAIChatModel, target: Target) -> None:
    whole = (await Agent(model).run(target.CAPITAL)).output
    most = 0
    for _ in range(5):  # what a busy machine has not read yet, an engine puts together
        async with Agent(model).run_stream(target.CAPITAL) as result:
            pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        assert whole == "".join(pieces)
        most = max(most, len(pieces))
    assert most > 4


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tool_loop(model: OpenAIChatModel, target: Target, stream: bool) -> None:
    asked = []
    agent = Agent(model)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather forecast for a city."""
        asked.append(city)
        return "Sunny, 21 degrees."

    if stream:
        async with agent.run_stream(target.WEATHER) as result:
            output = await result.get_output()
    else:
        output = (await agent.run(target.WEATHER)).output
    assert ["Paris"] == asked
    assert "21" in output


async def test_reasoning_is_kept_apart(model: OpenAIChatModel, target: Target) -> None:
    result = await Agent(model).run(target.THINK, model_settings=ModelSettings(temperature=0, extra_body={}))
    parts = [part.part_kind for part in result.all_messages()[-1].parts]
    assert ["thinking", "text"] == parts
    assert "Paris" in result.output


async def test_an_unknown_model(async_client: openai.AsyncOpenAI) -> None:
    unknown = OpenAIChatModel("gpt-9", provider=OpenAIProvider(openai_client=async_client))
    with pytest.raises(ModelHTTPError) as raised:
        await Agent(unknown).run("Say hello.")
    assert 404 == raised.value.status_code
