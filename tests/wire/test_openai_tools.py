"""openai-python and tools: the loop of call, result and answer, and how streamed calls merge."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

Target = Any  # of conftest
SUNNY = "Sunny, 21 degrees."


def ask(client: openai.OpenAI, target: Target, messages: list[Any], tools: list[Any], **options: Any) -> Any:
    body = {"model": target.model, "messages": messages, "tools": tools, "temperature": 0, "extra_body": target.OFF}
    return client.chat.completions.create(**body, **options)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def merged(chunks: list[Any]) -> list[dict[str, Any]]:
    """The calls of a stream, merged as clients do it: by index, with fragments in the order they came."""
    calls: dict[int, dict[str, Any]] = {}
    for delta in [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or ()]:
        call = calls.setdefault(delta.index, {"id": delta.id, "type": delta.type, "name": delta.function.name, "fragments": []})
        call["fragments"].append(delta.function.arguments)
    assert list(range(len(calls))) == list(calls)
    return list(calls.values())


def test_a_tool_is_called_and_its_result_answered(client: openai.OpenAI, target: Target, weather_tool: dict[str, Any]) -> None:
    messages: list[Any] = [user(target.WEATHER)]
    first = ask(client, target, messages, [weather_tool]).choices[0]
    assert "tool_calls" == first.finish_reason
    assert first.message.content is None
    (call,) = first.message.tool_calls
    assert ("function", "get_weather") == (call.type, call.function.name)
    assert {"city": "Paris"} == json.loads(call.function.arguments)
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": SUNNY}]
    second = ask(client, target, messages, [weather_tool]).choices[0]
    assert "stop" == second.finish_reason
    assert "21" in second.message.content


def test_streamed_calls_merge_by_index(client: openai.OpenAI, target: Target, weather_tool: dict[str, Any]) -> None:
    chunks = list(ask(client, target, [user(target.WEATHER)], [weather_tool], stream=True))
    assert ["tool_calls"] == [reason for chunk in chunks if (reason := chunk.choices[0].finish_reason)]
    (call,) = merged(chunks)
    assert ("get_weather", "function", True) == (call["name"], call["type"], call["id"].startswith("call_"))
    assert {"city": "Paris"} == json.loads("".join(call["fragments"]))
    assert len([fragment for fragment in call["fragments"] if fragment]) > 1


def test_two_calls_have_their_own_ids_and_indices(client: openai.OpenAI, target: Target, weather_tool: dict[str, Any]) -> None:
    chunks = list(ask(client, target, [user(target.TWO_CITIES)], [weather_tool], stream=True))
    calls = merged(chunks)
    cities = [json.loads("".join(call["fragments"]))["city"] for call in calls]
    assert ["Paris", "Rome"] == cities
    assert 2 == len({call["id"] for call in calls})
    indices = [delta.index for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or ()]
    assert sorted(indices) == indices  # one after the other


def test_whole_and_streamed_calls_are_the_same(client: openai.OpenAI, target: Target, weather_tool: dict[str, Any]) -> None:
    names = ["get_weather", "get_weather"]
    whole = ask(client, target, [user(target.TWO_CITIES)], [weather_tool]).choices[0].message.tool_calls
    assert names == [call.function.name for call in whole]
    assert ["Paris", "Rome"] == [json.loads(call.function.arguments)["city"] for call in whole]


def test_the_stream_helper_parses_arguments(client: openai.OpenAI, target: Target, weather_tool: dict[str, Any]) -> None:
    tool = {**weather_tool, "function": {**weather_tool["function"], "strict": True}}
    options: Any = {"model": target.model, "messages": [user(target.WEATHER)], "tools": [tool], "temperature": 0}
    with client.chat.completions.stream(**options, extra_body=target.OFF) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()
    assert [("get_weather", 0)] == [(event.name, event.index) for event in done]
    assert {"city": "Paris"} == done[0].parsed_arguments
    assert "tool_calls" == final.choices[0].finish_reason


def test_the_history_may_hold_several_results(client: openai.OpenAI, target: Target, weather_tool: dict[str, Any]) -> None:
    messages: list[Any] = [user(target.TWO_CITIES)]
    first = ask(client, target, messages, [weather_tool]).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": SUNNY} for call in reversed(first.tool_calls)]
    second = ask(client, target, [*messages, first, *results], [weather_tool]).choices[0]
    assert "stop" == second.finish_reason
    assert second.message.content


@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_call_leaves_no_half_arguments_in_a_whole_answer(
    start_gateway: Any, weather_tool: dict[str, Any], stream: bool
) -> None:
    opener = {"control": [{"call": {"tool": "get_weather", "index": 1}}, "open"]}
    script = [{"reply": ["</response>", "<tools>", opener, {"text": 'argument key="city" type="string"'}, "length"]}]
    gateway = start_gateway(script)
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.headers["authorization"][7:], max_retries=0) as client:
        options: Any = {"model": "kimi-k3", "messages": [user("?")], "tools": [weather_tool], "stream": stream}
        answer = client.chat.completions.create(**options, extra_body={"thinking": {"type": "disabled"}})
        choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
        assert "length" == choices[-1].finish_reason
        if not stream:
            assert choices[0].message.tool_calls is None
