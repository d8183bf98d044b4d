"""openai-python, chat completions: whole and streamed, every option that clients use."""

from __future__ import annotations

import json
from typing import Any

import openai
import pydantic
import pytest

Target = Any  # of conftest


class City(pydantic.BaseModel):
    city: str
    country: str


def ask(client: openai.OpenAI, target: Target, question: str, **options: Any) -> Any:
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "extra_body": target.OFF,
    }
    return client.chat.completions.create(**{**body, **options})


def test_a_whole_answer(client: openai.OpenAI, target: Target) -> None:
    answer = ask(client, target, target.CAPITAL)
    choice = answer.choices[0]
    assert ("chat.completion", target.model, 1) == (answer.object, answer.model, len(answer.choices))
    assert ("assistant", "stop", 0) == (choice.message.role, choice.finish_reason, choice.index)
    assert "Paris" in choice.message.content
    assert choice.message.tool_calls is None
    assert not hasattr(choice.message, "reasoning_content")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens > 10
    assert usage.completion_tokens > 3
    assert 0 == usage.completion_tokens_details.reasoning_tokens


def test_a_streamed_answer(client: openai.OpenAI, target: Target) -> None:
    chunks = list(ask(client, target, target.CAPITAL, stream=True, stream_options={"include_usage": True}))
    assert 1 == len({(chunk.id, chunk.created, chunk.model) for chunk in chunks})
    assert {"chat.completion.chunk"} == {chunk.object for chunk in chunks}
    *said, last = chunks
    assert ("assistant", "") == (said[0].choices[0].delta.role, said[0].choices[0].delta.content)
    assert [] == last.choices
    assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens
    assert all(chunk.usage is None for chunk in said)
    assert [None] * (len(said) - 1) + ["stop"] == [chunk.choices[0].finish_reason for chunk in said]
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in said)
    assert len(said) > 4  # in pieces, not at once


def test_no_usage_chunk_unless_asked_for(client: openai.OpenAI, target: Target) -> None:
    chunks = list(ask(client, target, target.CAPITAL, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_reasoning_is_a_field_of_its_own(client: openai.OpenAI, target: Target) -> None:
    answer = ask(client, target, target.THINK, extra_body={})
    message = answer.choices[0].message
    assert message.reasoning_content
    assert message.reasoning_content == message.reasoning
    assert "Paris" in message.content
    assert 0 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens


def test_reasoning_streams_before_content(client: openai.OpenAI, target: Target) -> None:
    kinds = []
    for chunk in ask(client, target, target.THINK, extra_body={}, stream=True):
        delta = chunk.choices[0].delta
        kinds += ["reasoning"] * bool(getattr(delta, "reasoning_content", None)) + ["content"] * bool(delta.content)
    assert kinds == sorted(kinds, reverse=True)
    assert {"reasoning", "content"} == set(kinds)


@pytest.mark.parametrize(
    "switch",
    [
        {"chat_template_kwargs": {"thinking": False}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"thinking": {"type": "disabled"}},
        {"reasoning_effort": "none"},
    ],
    ids=str,
)
def test_every_switch_turns_reasoning_off(client: openai.OpenAI, target: Target, switch: dict[str, Any]) -> None:
    answer = ask(client, target, target.CAPITAL, extra_body=switch)
    assert not hasattr(answer.choices[0].message, "reasoning_content")
    assert "Paris" in answer.choices[0].message.content


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_reasoning_effort_is_accepted(client: openai.OpenAI, target: Target, effort: Any) -> None:
    answer = ask(client, target, target.THINK, extra_body={}, reasoning_effort=effort)
    assert "Paris" in answer.choices[0].message.content


def test_the_stream_helper_gives_events_and_a_final_completion(client: openai.OpenAI, target: Target) -> None:
    messages: Any = [{"role": "user", "content": target.CAPITAL}]
    options: Any = {"stream_options": {"include_usage": True}, "extra_body": target.OFF, "temperature": 0}
    with client.chat.completions.stream(model=target.model, messages=messages, **options) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    deltas = [event.delta for event in events if event.type == "content.delta"]
    done = [event.content for event in events if event.type == "content.done"]
    content = final.choices[0].message.content
    assert content is not None
    assert ["".join(deltas)] == [content] == done
    assert "Paris" in content
    assert "stop" == final.choices[0].finish_reason
    assert final.usage is not None
    assert final.usage.completion_tokens > 0


def test_parse_gives_an_object(client: openai.OpenAI, target: Target) -> None:
    messages: Any = [{"role": "user", "content": target.JSON}]
    answer = client.chat.completions.parse(
        model=target.model, messages=messages, response_format=City, temperature=0, extra_body=target.OFF
    )
    parsed = answer.choices[0].message.parsed
    assert parsed is not None
    assert "Paris" == parsed.city


def test_parse_of_a_cut_answer_raises_the_documented_error(client: openai.OpenAI, target: Target) -> None:
    messages: Any = [{"role": "user", "content": target.JSON}]
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=target.model, messages=messages, response_format=City, max_tokens=2, extra_body=target.OFF
        )


def test_json_mode(client: openai.OpenAI, target: Target) -> None:
    answer = ask(client, target, target.JSON, response_format={"type": "json_object"})
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_the_request_id_can_be_read_and_chosen(client: openai.OpenAI, target: Target) -> None:
    messages: Any = [{"role": "user", "content": target.HELLO}]
    chosen = {"x-request-id": "wire-test-1"}
    raw = client.chat.completions.with_raw_response.create(
        model=target.model, messages=messages, max_tokens=2, extra_headers=chosen
    )
    assert ("wire-test-1", "wire-test-1") == (raw.headers["x-request-id"], raw.request_id)
    assert "length" == raw.parse().choices[0].finish_reason
    assert ask(client, target, target.HELLO, max_tokens=2)._request_id


@pytest.mark.parametrize("stream", [False, True])
def test_two_choices(client: openai.OpenAI, target: Target, stream: bool) -> None:
    answer = ask(client, target, target.HELLO, n=2, stream=stream)
    texts, finishes = {}, {}
    for choice in [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices:
        part = choice.delta if stream else choice.message
        texts[choice.index] = texts.get(choice.index, "") + (part.content or "")
        finishes[choice.index] = choice.finish_reason
    assert {0: "stop", 1: "stop"} == finishes
    assert texts[0] == texts[1]  # greedy
    assert texts[0]


def test_usage_of_two_choices_counts_the_prompt_once(client: openai.OpenAI, target: Target) -> None:
    one, two = (ask(client, target, target.HELLO, n=n).usage for n in (1, 2))
    assert (one.prompt_tokens, 2 * one.completion_tokens) == (two.prompt_tokens, two.completion_tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_spell_the_content(client: openai.OpenAI, target: Target, stream: bool) -> None:
    answer = ask(client, target, target.CAPITAL, logprobs=True, top_logprobs=2, stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    content = "".join((choice.delta if stream else choice.message).content or "" for choice in choices)
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    assert content == b"".join(bytes(token.bytes) for token in tokens).decode()
    assert all(token.logprob <= 0 and 2 == len(token.top_logprobs) for token in tokens)
    assert all(token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob for token in tokens)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["Paris", ["nowhere", "Paris"]])
def test_a_stop_string_is_cut_off(client: openai.OpenAI, target: Target, stop: Any, stream: bool) -> None:
    answer = ask(client, target, target.CAPITAL, stop=stop, stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert "stop" == choices[-1].finish_reason
    content = "".join((choice.delta if stream else choice.message).content or "" for choice in choices)
    assert content
    assert "Par" not in content


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_output_limit_is_exact(client: openai.OpenAI, target: Target, name: str) -> None:
    answer = ask(client, target, target.CAPITAL, **{name: 3})
    assert ("length", 3) == (answer.choices[0].finish_reason, answer.usage.completion_tokens)


def test_an_output_limit_above_the_context_is_lowered(client: openai.OpenAI, target: Target) -> None:
    answer = ask(client, target, target.CAPITAL, max_tokens=10_000_000)
    assert "stop" == answer.choices[0].finish_reason


def test_a_seed_repeats_an_answer(client: openai.OpenAI, target: Target) -> None:
    options = {"seed": 7, "temperature": 1.0, "max_tokens": 12}
    answers = {ask(client, target, target.HELLO, **options).choices[0].message.content for _ in range(8)}
    assert 1 == len(answers)


@pytest.mark.parametrize("options", [{"top_k": 5}, {"top_p": 0.5}, {"top_k": 5, "top_p": 0.5}, {}], ids=str)
def test_sampling_where_drafts_are_guessed(client: openai.OpenAI, target: Target, options: dict[str, Any]) -> None:
    """Repeated words make an engine with n-gram speculation guess, and each sampler must cope with the guesses."""
    body = {**target.OFF, **options, "ignore_eos": True}
    answer = ask(client, target, "Repeat: " + "apple pear plum " * 20, temperature=1.0, max_tokens=60, extra_body=body)
    assert ("length", 60) == (answer.choices[0].finish_reason, answer.usage.completion_tokens)


def test_models(client: openai.OpenAI, target: Target) -> None:
    listed = client.models.list().data
    assert [target.model] == [model.id for model in listed]
    assert listed[0] == client.models.retrieve(target.model)
    assert target.model == client.models.retrieve("moonshotai/Kimi-K3").id


def test_an_alias_is_answered_with_the_models_name(client: openai.OpenAI, target: Target) -> None:
    assert target.model == ask(client, target, target.HELLO, model="moonshotai/Kimi-K3", max_tokens=1).model


def test_the_key_may_come_as_x_api_key(target: Target) -> None:
    headers: Any = {"authorization": openai.Omit(), "x-api-key": target.key}
    with openai.OpenAI(base_url=target.base_url, api_key="none", max_retries=0) as client:
        request = client.models.with_raw_response.list(extra_headers=headers)
        assert "authorization" not in request.http_request.headers
        assert [target.model] == [model.id for model in request.parse().data]


async def test_the_async_client(async_client: openai.AsyncOpenAI, target: Target) -> None:
    messages: Any = [{"role": "user", "content": target.CAPITAL}]
    options: Any = {"model": target.model, "messages": messages, "temperature": 0, "extra_body": target.OFF}
    whole = await async_client.chat.completions.create(**options)
    streamed = [chunk async for chunk in await async_client.chat.completions.create(**options, stream=True)]
    assert "Paris" in whole.choices[0].message.content
    assert whole.choices[0].message.content == "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    async with async_client.chat.completions.stream(**options) as stream:
        final = await stream.get_final_completion()
    assert whole.choices[0].message.content == final.choices[0].message.content
    assert target.model == (await async_client.models.retrieve(target.model)).id
