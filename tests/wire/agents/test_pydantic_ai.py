"""pydantic-ai: its agent over several turns, with the reasoning of earlier answers sent back."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import ModelMessage, ThinkingPart, ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

Trip = Any  # of conftest


def agent_of(trip: Trip) -> Agent[None, str]:
    agent = Agent(OpenAIChatModel(trip.model, provider=OpenAIProvider(openai_client=trip.client)), instructions="Be brief.")
    agent.tool_plain(trip.get_weather)

    @agent.tool_plain
    def get_time(city: str) -> str:
        """Get the time in a city."""
        try:
            return str(trip.get_time(city))
        except LookupError as error:
            raise ModelRetry(str(error)) from error

    return agent


async def drain(_: Any, events: AsyncIterable[Any]) -> None:
    """Given as the handler of events, it makes every request of a run a streamed one; `run_stream` would end at the first text."""
    async for _event in events:
        pass


async def run(
    agent: Agent[None, str], question: str, history: list[ModelMessage], *, stream: bool
) -> tuple[str, list[ModelMessage]]:
    result = await agent.run(question, message_history=history, event_stream_handler=drain if stream else None)
    return result.output, result.all_messages()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_trip(trip: Trip, stream: bool) -> None:
    agent = agent_of(trip)
    first, history = await run(agent, trip.QUESTION, [], stream=stream)
    second, history = await run(agent, trip.MORE, history, stream=stream)
    assert (trip.ANSWER, trip.ANSWER_TO_MORE) == (first, second)
    parts = [part for message in history for part in message.parts]
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    assert list(trip.CALLS) == [(call.tool_name, call.args_as_dict()) for call in calls]
    assert 4 == len({call.tool_call_id for call in calls})
    assert list(trip.THOUGHTS) == [part.content for part in parts if isinstance(part, ThinkingPart)]
    trip.check_results()
    trip.check_history(reasoning=True)
