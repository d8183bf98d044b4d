"""LangChain: a loop over bound tools. `ChatOpenAI` drops reasoning, so earlier answers come back without it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import BaseTool, ToolException, tool
from langchain_openai import ChatOpenAI

Trip = Any  # of conftest


def tools_of(trip: Trip) -> dict[str, BaseTool]:
    @tool
    def get_time(city: str) -> str:
        """Get the time in a city."""
        try:
            return str(trip.get_time(city))
        except LookupError as error:
            raise ToolException(str(error)) from error

    get_time.handle_tool_error = True
    return {"get_weather": tool(trip.get_weather), "get_time": get_time}


async def answered(model: Any, messages: list[BaseMessage], *, stream: bool) -> AIMessage:
    if not stream:
        return await model.ainvoke(messages)  # type: ignore[no-any-return]
    whole: AIMessageChunk | None = None
    async for chunk in model.astream(messages):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    return whole


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_trip(trip: Trip, stream: bool) -> None:
    tools = tools_of(trip)
    calls = []
    messages: list[BaseMessage] = [SystemMessage("Be brief.")]
    async with httpx.AsyncClient() as http:
        with httpx.Client() as unused:  # without it, one is made that nobody closes
            model = ChatOpenAI(
                model=trip.model, base_url=str(trip.client.base_url), api_key=trip.client.api_key, max_retries=0, stream_usage=True,
                http_async_client=http, http_client=unused,
            ).bind_tools(list(tools.values()), parallel_tool_calls=True)  # fmt: skip
            for question, expected in ((trip.QUESTION, trip.ANSWER), (trip.MORE, trip.ANSWER_TO_MORE)):
                messages.append(HumanMessage(question))
                answer = await answered(model, messages, stream=stream)
                while answer.tool_calls:
                    assert [] == answer.invalid_tool_calls
                    calls += answer.tool_calls
                    results = [await tools[call["name"]].ainvoke(call) for call in answer.tool_calls]
                    messages += [answer, *reversed(results)]  # the order in which they were ready is not that of the calls
                    answer = await answered(model, messages, stream=stream)
                messages.append(answer)
                assert expected == answer.content
    assert list(trip.CALLS) == [(call["name"], call["args"]) for call in calls]
    assert 4 == len({call["id"] for call in calls})
    trip.check_results()
    trip.check_history(reasoning=False)
