"""openai-agents: its runner over several turns, with the reasoning of earlier answers sent back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool

Trip = Any  # of conftest
OFFLINE = RunConfig(tracing_disabled=True)


def agent_of(trip: Trip) -> Agent[None]:
    model = OpenAIChatCompletionsModel(trip.model, openai_client=trip.client, should_replay_reasoning_content=lambda _: True)
    # Errors are told to the model; the runner's own message would say only that there was one.
    tools: list[Any] = [
        function_tool(function, failure_error_function=lambda _, error: str(error))
        for function in (trip.get_weather, trip.get_time)
    ]
    settings = ModelSettings(parallel_tool_calls=True)
    return Agent("traveller", instructions="Be brief.", model=model, tools=tools, model_settings=settings)


async def run(agent: Agent[None], messages: Any, *, stream: bool) -> Any:
    if not stream:
        return await Runner.run(agent, messages, run_config=OFFLINE)
    result = Runner.run_streamed(agent, messages, run_config=OFFLINE)
    async for _ in result.stream_events():
        pass
    return result


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_trip(trip: Trip, stream: bool) -> None:
    agent = agent_of(trip)
    first = await run(agent, trip.QUESTION, stream=stream)
    assert trip.ANSWER == first.final_output
    history = [*first.to_input_list(), {"role": "user", "content": trip.MORE}]
    second = await run(agent, history, stream=stream)
    assert trip.ANSWER_TO_MORE == second.final_output
    items = [*first.new_items, *second.new_items]
    calls = [item.raw_item for item in items if item.type == "tool_call_item"]
    assert list(trip.CALLS) == [(call.name, json.loads(call.arguments)) for call in calls]
    assert 4 == len({call.call_id for call in calls})
    thoughts = [item.raw_item.summary[0].text for item in items if item.type == "reasoning_item"]
    assert list(trip.THOUGHTS) == thoughts
    trip.check_results()
    trip.check_history(reasoning=True)
