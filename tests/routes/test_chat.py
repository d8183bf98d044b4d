"""Settings of a model, seen by a client of `POST /v1/chat/completions`."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from server.vocabulary.byte import ByteVocabulary

TOOL = {
    "type": "function",
    "function": {
        "name": "forecast",
        "parameters": {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]},
    },
}
USER = {"role": "user", "content": "Hello"}
HELLO = [{"text": "Hello!"}, {"control": ["</response>", "</message>"]}, "stop"]
CALL = [{"call": {"tool": "forecast", "index": 1}}, {"argument": {"key": "days", "value": "soon"}}, "</call>"]
WRONG_CALL = [{"text": "Look."}, {"control": ["</response>", "<tools>", *CALL, "</tools>", "</message>"]}, "stop"]


def rules(*reply: Any) -> list[dict[str, Any]]:
    return [{"reply": list(reply)}]


def ask(gateway: Any, **fields: Any) -> httpx.Response:
    body = {"model": "kimi-k3", "messages": [USER], "thinking": {"type": "disabled"}, **fields}
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=gateway.headers, timeout=20)


def frames(response: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def model(**settings: Any) -> dict[str, Any]:
    return {"models": {"kimi-k3": settings}}


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
@pytest.mark.parametrize("n", [1, 2])
def test_the_counts_come_in_the_choice_that_ends_last_where_that_is_set(start_gateway: Any, n: int, options: Any) -> None:
    gateway = start_gateway(rules(*HELLO), **model(usage_in_choice=True))
    whole = ask(gateway, n=n).json()["usage"]
    chunks = [chunk for chunk in frames(ask(gateway, n=n, stream=True, **options)) if chunk != "[DONE]"]

    found = [choice["usage"] for chunk in chunks for choice in chunk["choices"] if "usage" in choice]
    ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if "usage" in choice]
    assert ([{**whole, "prompt_tokens_details": found[0]["prompt_tokens_details"]}], ["stop"]) == (found, ends)
    assert bool(options) == (chunks[-1].get("usage") is not None)


@pytest.mark.parametrize(("settings", "expected"), [({}, False), ({"sampling": "moonshot"}, True)])
def test_the_counts_come_in_the_choice_where_it_is_as_hosted(start_gateway: Any, settings: Any, expected: bool) -> None:
    chunks = frames(ask(start_gateway(rules(*HELLO), **model(**settings)), stream=True))

    assert expected == any("usage" in choice for chunk in chunks[:-1] for choice in chunk["choices"])
    unwanted = frames(ask(start_gateway(rules(*HELLO), **model(**settings, usage_in_choice=False)), stream=True))
    assert all("usage" not in choice for chunk in unwanted[:-1] for choice in chunk["choices"])


@pytest.mark.parametrize("policy", ["retry", "error"])
def test_a_call_that_does_not_fit_is_an_error_where_it_must_not_be_delivered(start_gateway: Any, policy: str) -> None:
    gateway = start_gateway(rules(*WRONG_CALL), **model(tool_call_policy=policy))
    whole = ask(gateway, tools=[TOOL])
    streamed = frames(ask(gateway, tools=[TOOL], stream=True))

    assert (502, "invalid_tool_call") == (whole.status_code, whole.json()["error"]["code"])
    assert whole.json()["error"] == streamed[-1]["error"]
    said = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in streamed[:-1])
    assert "Look." * (3 if policy == "retry" else 1) == said
    assert all("tool_calls" not in chunk["choices"][0]["delta"] for chunk in streamed[:-1])
    counts = metrics(gateway)
    assert 'k3gw_tool_calls_total{model="kimi-k3",outcome="refused",tenant="default"} 2.0' in counts
    assert (policy == "retry") == ('k3gw_tool_calls_total{model="kimi-k3",outcome="retried"' in counts)
    assert 'k3gw_requests_total{api="chat",model="kimi-k3",outcome="invalid_tool_call",tenant="default"} 2.0' in counts


def test_a_call_that_does_not_fit_is_delivered_and_counted_by_default(start_gateway: Any) -> None:
    gateway = start_gateway(rules(*WRONG_CALL))
    [call] = ask(gateway, tools=[TOOL]).json()["choices"][0]["message"]["tool_calls"]

    assert '{"days": "soon"}' == call["function"]["arguments"]
    assert 'k3gw_tool_calls_total{model="kimi-k3",outcome="invalid"' in metrics(gateway)


@pytest.mark.parametrize(("text", "ending", "outcome"), [
    ('{"days":3}', "stop", "delivered"), ('{"days":"soon"}', "stop", "invalid"), ("Soon.", "stop", "invalid"), ('{"day', "length", "cut"),
])  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_answers_that_were_to_fit_a_schema_are_counted(
    start_gateway: Any, text: str, ending: str, outcome: str, stream: bool
) -> None:
    gateway = start_gateway(
        rules({"text": text}, *([{"control": ["</response>", "</message>"]}] if ending == "stop" else []), ending)
    )
    schema = {"name": "answer", "schema": TOOL["function"]["parameters"]}
    response = ask(gateway, stream=stream, response_format={"type": "json_schema", "json_schema": schema})

    assert 200 == response.status_code
    assert f'k3gw_json_answers_total{{model="kimi-k3",outcome="{outcome}",tenant="default"}} 1.0' in metrics(gateway)


def metrics(gateway: Any) -> str:
    return httpx.get(f"{gateway.url}/metrics", timeout=20).text


@pytest.mark.parametrize("grammar", ["off", "strict", "always"])
@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL]}, {"response_format": {"type": "json_object"}}])
def test_answers_are_held_to_a_grammar_where_something_is_asked_of_them(start_gateway: Any, grammar: str, fields: Any) -> None:
    gateway = start_gateway(rules(*HELLO), **model(grammar=grammar))
    assert 200 == ask(gateway, **fields).status_code

    [request] = httpx.get(f"{gateway.url}/debug/engine", headers=gateway.headers, timeout=20).json()["requests"]
    assert (bool(fields) and grammar != "off") == (request["grammar"] is not None)


@pytest.mark.parametrize("stream", [False, True])
def test_pinned_values_win_and_a_header_names_those_that_were_ignored(start_gateway: Any, stream: bool) -> None:
    gateway = start_gateway(rules(*HELLO), **model(sampling="pin"))
    response = ask(gateway, stream=stream, temperature=0.3, top_p=0.5, max_tokens=100)

    [request] = httpx.get(f"{gateway.url}/debug/engine", headers=gateway.headers, timeout=20).json()["requests"]
    assert (1.0, 0.95, 100) == tuple(request["sampling"][name] for name in ("temperature", "top_p", "max_tokens"))
    assert ["temperature", "top_p"] == sorted(response.headers["x-k3gw-ignored"].split(", "))
    assert "x-k3gw-ignored" not in ask(gateway, stream=stream).headers


def test_values_that_hosted_k3_refuses_are_refused_where_that_is_set(start_gateway: Any) -> None:
    gateway = start_gateway(rules(*HELLO), **model(sampling="moonshot"))
    refused = ask(gateway, top_p=0.5)

    assert (400, "top_p") == (refused.status_code, refused.json()["error"]["param"])
    assert 200 == ask(gateway, temperature=0.6).status_code
    [request] = httpx.get(f"{gateway.url}/debug/engine", headers=gateway.headers, timeout=20).json()["requests"]
    assert (0.6, 0.95) == (request["sampling"]["temperature"], request["sampling"]["top_p"])


@pytest.mark.parametrize("place", ["content", "reasoning", "arguments"])
def test_unicodes_line_ends_do_not_split_a_stream(start_gateway: Any, place: str) -> None:
    """Clients may split a stream with `str.splitlines`, as httpx does."""
    text = "a\u2028b\u2029c\u0085d"
    call = [{"call": {"tool": "forecast", "index": 1}}, {"argument": {"key": "days", "value": text}}, "</call>"]
    replies = {
        "content": [{"text": text}, {"control": ["</response>", "</message>"]}],
        "reasoning": [{"text": text}, {"control": ["</think>", "<response>", "</response>", "</message>"]}],
        "arguments": [{"control": ["</response>", "<tools>", *call, "</tools>", "</message>"]}],
    }
    gateway = start_gateway(rules(*replies[place], "stop"), vocabulary=ByteVocabulary())
    body = {"thinking": {"type": "enabled" if place == "reasoning" else "disabled"}, "stream": True}
    lines = [line.removeprefix("data: ") for line in ask(gateway, **body).iter_lines() if line]

    assert "[DONE]" == lines.pop()
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
    said = {
        "content": "".join(delta.get("content") or "" for delta in deltas),
        "reasoning": "".join(delta.get("reasoning") or "" for delta in deltas),
        "arguments": "".join(call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ())),
    }[place]
    assert text in (said if place != "arguments" else json.loads(said)["days"])


def test_what_only_the_gateway_decides_may_be_dropped(start_gateway: Any) -> None:
    gateway = start_gateway(rules(*HELLO), tenancy={"reserved_fields": "ignore"})
    body = {"model": "kimi-k3", "messages": [USER], "cache_salt": "mine", "priority": -5, "kv_transfer_params": {"a": 1}}
    headers = {**gateway.headers, "x-tenant-id": "other", "x-k3gw-priority": "0"}
    assert httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=20).status_code == 200

    [request] = httpx.get(f"{gateway.url}/debug/engine", headers=gateway.headers).json()["requests"]
    assert "mine" != request["cache_salt"]
    assert ("default", 0) == (request["hints"]["tenant"], request["priority"])


def test_what_was_no_request_of_an_api_is_in_no_ledger(start_gateway: Any) -> None:
    gateway = start_gateway(rules(*HELLO))
    assert httpx.get(f"{gateway.url}/v1/nothing", headers=gateway.headers).status_code == 404
    assert httpx.get(f"{gateway.url}/v1/models/nothing", headers=gateway.headers).status_code == 404
    assert ask(gateway, messages=[]).status_code == 400

    [row] = gateway.ledger(1)
    assert ("chat", "invalid") == (row["api"], row["outcome"])


def test_a_text_that_comes_again_is_encoded_once(start_gateway: Any) -> None:
    class Counting(ByteVocabulary):
        num_chars = 0

        def encode(self, text: str, most: int | None = None) -> list[int]:
            self.num_chars += len(text) if text.startswith("again") else 0
            return super().encode(text, most)

    vocabulary = Counting()
    gateway = start_gateway(rules(*HELLO), vocabulary=vocabulary)
    encoded = []
    for _ in range(2):
        vocabulary.num_chars = 0
        assert 200 == ask(gateway, messages=[{"role": "user", "content": "again " * 500}]).status_code
        encoded.append(vocabulary.num_chars)
    assert [3000, 0] == encoded
