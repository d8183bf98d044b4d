"""What hosted K3 takes and refuses (`sampling: moonshot`), and how it counts prompts, as its vendors' checks want it.

Source: Kimi-Vendor-Verifier, `tests/params`, `tests/k3_features`, `tests/prompt_tokens`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from server.vocabulary.load import load

Start = Callable[..., Any]
USER = {"role": "user", "content": "Say hello."}
OFF = {"thinking": {"type": "disabled"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}

TAKEN: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 0.0},
    {"temperature": 0.6},
    {"temperature": 1},
    {"temperature": 1.0},
    {"top_p": 0.95},
    {"n": 1},
    {"presence_penalty": 0},
    {"frequency_penalty": 0.0},
    {"temperature": 1.0, "top_p": 0.95, "n": 1, "presence_penalty": 0, "frequency_penalty": 0},
    {"temperature": None, "top_p": None, "n": None, "presence_penalty": None, "frequency_penalty": None, "stop": None},
    {"stop": "x" * 32},
    {"stop": ["a", "b", "c", "d", "é" * 16]},
    {"tools": []},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tool_choice": "auto"},
    {"tool_choice": "none"},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 1.1}, "temperature"),
    ({"temperature": 2.0}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_p": 0.8}, "top_p"),
    ({"top_p": 1}, "top_p"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"presence_penalty": -0.5}, "presence_penalty"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"n": 2}, "n"),
    ({"stop": ["a", "b", "c", "d", "e", "f"]}, "stop"),
    ({"stop": "x" * 33}, "stop"),
    ({"stop": ["a", "é" * 17]}, "stop[1]"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "required", "tools": []}, "tool_choice"),
    ({"tool_choice": "maybe", "tools": [TOOL]}, "tool_choice"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"messages": [{**USER, "tools": [TOOL]}]}, "messages[0].tools"),
    ({"messages": [USER, {"role": "assistant", "content": "x", "tools": [TOOL]}, USER]}, "messages[1].tools"),
    ({"messages": [{"role": "system", "content": "x", "tools": [TOOL]}, USER]}, "messages[0].tools"),
    ({"messages": [{"role": "system", "tools": [TOOL]}, USER], "tools": [TOOL]}, "messages[0].tools[0].function.name"),
    ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format.json_schema.name"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strict": "yes"}}},
        "response_format.json_schema.strict",
    ),
]  # fmt: skip


def outcome(http: httpx.Client, gateway: Any, fields: dict[str, Any]) -> tuple[int, str | None, str | None]:
    """Status, type of error and its `param`."""
    body = {"model": "kimi-k3", "messages": [USER], **fields}
    response = http.post(f"{gateway.url}/v1/chat/completions", json=body, headers=gateway.headers)
    if response.status_code == 200:
        return 200, None, None
    error = response.json()["error"]
    return response.status_code, error["type"], error["param"]


@pytest.mark.parametrize("more", [{}, OFF, {"stream": True}], ids=["thinking", "direct", "streamed"])
def test_what_hosted_k3_takes(http: httpx.Client, start_gateway: Start, more: dict[str, Any]) -> None:
    gateway = start_gateway(models={"kimi-k3": {"sampling": "moonshot"}})
    found = {str(fields): outcome(http, gateway, {**fields, **more}) for fields in TAKEN}
    assert {str(fields): (200, None, None) for fields in TAKEN} == found


@pytest.mark.parametrize("more", [{}, OFF, {"stream": True}], ids=["thinking", "direct", "streamed"])
def test_what_hosted_k3_refuses(http: httpx.Client, start_gateway: Start, more: dict[str, Any]) -> None:
    gateway = start_gateway(models={"kimi-k3": {"sampling": "moonshot"}})
    found = {str(fields): outcome(http, gateway, {**fields, **more}) for fields, _ in REFUSED}
    assert {str(fields): (400, "invalid_request_error", param) for fields, param in REFUSED} == found
    assert [] == gateway.engine.recorded()["requests"]


def test_without_that_setting_the_engines_ranges_hold(http: httpx.Client, start_gateway: Start) -> None:
    gateway = start_gateway()
    sampled = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "n", "stop", "stop[1]")
    wider = [fields for fields, param in REFUSED if param in sampled and fields != {"temperature": -0.1}]
    assert 11 == len(wider)
    assert [200] * 11 == [outcome(http, gateway, fields)[0] for fields in wider]


CAPITAL = "请用 JSON 格式回答：北京是中国的首都吗？答案需要包含键 capital。"
SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "boolean"}},
    "required": ["capital"],
    "additionalProperties": False,
}
ASSISTANT = {"role": "assistant", "content": "你好"}


def test_prompt_tokens_are_counted_as_hosted_k3_does(shared: Path, start_gateway: Start) -> None:
    gateway = start_gateway(vocabulary=load(shared / "k3" / "tiktoken.model"), models={"kimi-k3": {"sampling": "moonshot"}})
    capital = [{"role": "user", "content": CAPITAL}]
    schema = {"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}}
    asked: list[tuple[dict[str, Any], int]] = [
        ({"messages": capital, "extra_body": OFF}, 36),
        ({"messages": capital, "extra_body": OFF, "response_format": schema}, 119),
        ({"messages": [ASSISTANT], "reasoning_effort": "high"}, 99),
        ({"messages": [ASSISTANT], "extra_body": {"thinking": {"type": "enabled", "effort": "high"}}}, 99),
        ({"messages": [ASSISTANT], "extra_body": {"chat_template_kwargs": {"thinking": True, "thinking_effort": "high"}}}, 99),
    ]
    key = gateway.headers["authorization"].removeprefix("Bearer ")
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as client:
        for fields, num_tokens in asked:
            whole = client.chat.completions.create(model="kimi-k3", **fields).usage
            chunks = list(
                client.chat.completions.create(model="kimi-k3", stream=True, stream_options={"include_usage": True}, **fields)
            )
            streamed = chunks[-1].usage
            assert (num_tokens, num_tokens) == (whole.prompt_tokens, streamed.prompt_tokens), fields
            assert whole.prompt_tokens_details.cached_tokens <= num_tokens
            assert streamed.prompt_tokens_details.cached_tokens <= num_tokens
