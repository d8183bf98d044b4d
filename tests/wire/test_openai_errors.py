"""openai-python's exception classes: every fault reaches the client as the class that its documentation names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

Target = Any  # of conftest
HELLO: Any = [{"role": "user", "content": "Say hello."}]
OFF: Any = {"thinking": {"type": "disabled"}}


@contextmanager
def client_of(gateway: Any) -> Iterator[openai.OpenAI]:
    key = gateway.headers["authorization"].removeprefix("Bearer ")
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as client:
        yield client


def create(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(**{"model": "kimi-k3", "messages": HELLO, "extra_body": OFF, **options})


BAD = [
    ({"temperature": -1}, "temperature"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"top_p": 0}, "top_p"),
    ({"stop": ["x", ""]}, "stop[1]"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "poem"}}, "response_format.type"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"reasoning_effort": "enormous"}, "reasoning_effort"),
    ({"extra_body": {"cache_salt": "mine"}}, "cache_salt"),
    ({"extra_body": {"priority": -5}}, "priority"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("options", "param"), BAD, ids=str)
def test_a_bad_request_names_the_field(client: openai.OpenAI, options: dict[str, Any], param: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        create(client, **options, stream=stream)
    assert (400, param, "invalid_request_error") == (raised.value.status_code, raised.value.param, raised.value.type)
    assert raised.value.request_id


def test_a_wrong_key(target: Target) -> None:
    wrong = target.key[:-1] + "x"
    with openai.OpenAI(base_url=target.base_url, api_key=wrong, max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as raised:
            create(client)
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
    assert "invalid_api_key" == raised.value.code
    assert wrong not in str(raised.value)


def test_an_unknown_model_lists_those_allowed(client: openai.OpenAI, target: Target) -> None:
    for ask in (lambda: create(client, model="gpt-9"), lambda: client.models.retrieve("gpt-9")):
        with pytest.raises(openai.NotFoundError) as raised:
            ask()
        assert ("model_not_found", "model") == (raised.value.code, raised.value.param)
        assert f"`{target.model}`" in str(raised.value)


def test_an_unknown_path(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        client.audio.speech.create(model="kimi-k3", voice="alloy", input="x")
    assert "not_found" == raised.value.code


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context_is_told_both_numbers(client: openai.OpenAI, stream: bool, target: Target) -> None:
    context_length = client.models.retrieve(target.model).model_dump()["max_model_len"]
    words = "x " * context_length
    with pytest.raises(openai.BadRequestError) as raised:
        create(client, messages=[{"role": "user", "content": words}], stream=stream)
    assert ("context_length_exceeded", "messages") == (raised.value.code, raised.value.param)
    assert f" {context_length};" in raised.value.message


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_byte_is_a_500(start_gateway: Callable[..., Any], stream: bool) -> None:
    with client_of(start_gateway([{"reply": ["error"]}])) as client, pytest.raises(openai.InternalServerError) as raised:
        create(client, stream=stream)
    assert (500, "engine_error") == (raised.value.status_code, raised.value.code)


@pytest.mark.parametrize("stream", [False, True])
def test_a_dead_engine_is_a_503(start_gateway: Callable[..., Any], stream: bool) -> None:
    with client_of(start_gateway([{"reply": ["die"]}])) as client:
        for _ in range(2):  # the one that it dies of, and the next
            with pytest.raises(openai.APIStatusError) as raised:
                create(client, stream=stream)
            assert isinstance(raised.value, openai.InternalServerError)
            assert (503, "engine_dead") == (raised.value.status_code, raised.value.code)
            assert int(raised.value.response.headers["retry-after"]) > 0


def test_a_failure_after_the_first_byte_is_raised_from_the_stream(start_gateway: Callable[..., Any]) -> None:
    with client_of(start_gateway([{"reply": [{"text": "It is"}, "error"]}])) as client:
        stream = create(client, stream=True)
        text = "".join(next(stream).choices[0].delta.content or "" for _ in range(1 + len("It is")))
        with pytest.raises(openai.APIError) as raised:
            next(stream)
    assert ("It is", "engine_error") == (text, raised.value.code)
    assert not isinstance(raised.value, openai.APIStatusError)


def test_a_death_after_the_first_byte_is_raised_from_the_stream(start_gateway: Callable[..., Any]) -> None:
    gateway = start_gateway([{"reply": [{"text": "It is"}, "die"]}])
    with client_of(gateway) as client, pytest.raises(openai.APIError) as raised:
        list(create(client, stream=True))
    assert "engine_dead" == raised.value.code


def test_retries_of_the_client_wait_for_what_we_say(start_gateway: Callable[..., Any]) -> None:
    gateway = start_gateway()
    gateway.gateway.drain()
    with client_of(gateway) as client, pytest.raises(openai.InternalServerError) as raised:
        create(client)
    assert (503, "draining") == (raised.value.status_code, raised.value.code)
    assert "5" == raised.value.response.headers["retry-after"]
