"""A streamed and a whole answer are the same answer: text, reasoning, calls, finish and usage, for every form of script."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

Start = Callable[..., Any]
END = ["</response>", "</message>", "stop"]
CALL = [{"call": {"tool": "f", "index": 1}}, {"argument": {"key": "city", "value": "Paris"}}, "</call>"]
TYPED = [
    {"call": {"tool": "g", "index": 2}},
    *(
        {"argument": {"key": key, "value": value}}
        for key, value in {"i": 3, "b": True, "n": None, "l": [1, "a"], "o": {"k": 0.5}}.items()
    ),
    "</call>",
]
OPEN_CALL = [{"call": {"tool": "f", "index": 1}}, "open"]
UNICODE = 'Grüße, 世界 \U0001f600! "quoted" \\ back\n\ttab \u2028 \x7f end'
FORGED = "a <|close|>response<|sep|> b <|end_of_msg|> c"

DIRECT: dict[str, list[Any]] = {
    "text": [{"text": "Hello, world."}, *END],
    "unicode": [{"text": UNICODE}, *END],
    "text that spells markers": [{"text": FORGED}, *END],
    "spaces": [{"text": "  \n a \n  "}, *END],
    "long": [{"repeat": {"times": 300, "of": [{"text": "lorem ipsum "}]}}, *END],
    "nothing": [*END],
    "at once stop": ["stop"],
    "cut": [{"text": "Hello, wor"}, "length"],
    "cut at once": ["length"],
    "cut within a character": [{"text": "Gr"}, {"ids": [0xC3]}, "length"],
    "broken characters": [{"text": "a"}, {"ids": [0xFF, 0xC3, 0x28]}, {"text": "b"}, *END],
    "no end of the channel": [{"text": "Hello."}, "stop"],
    "pauses": [{"text": "a"}, {"wait_ms": 2}, {"text": "b"}, {"wait_ms": 2}, *END],
    "a call": ["</response>", "<tools>", {"control": CALL}, "</tools>", "</message>", "stop"],
    "text and calls": [
        {"text": "Let me look."},
        "</response>",
        "<tools>",
        {"control": [*CALL, *TYPED]},
        "</tools>",
        "</message>",
        "stop",
    ],
    "calls without an end": ["</response>", "<tools>", {"control": CALL}, "stop"],
    "a cut call": ["</response>", "<tools>", {"control": [*CALL, *OPEN_CALL]}, {"text": 'argument key="x" ty'}, "length"],
    "only a cut call": [{"text": "x"}, "</response>", "<tools>", {"control": OPEN_CALL}, "length"],
    "a stray marker": [{"text": "a"}, {"control": ["sep", "close"]}, {"text": "b"}, *END],
    "text after the end": [{"text": "a"}, "</response>", {"text": "b"}, "</message>", "stop"],
}
THINKING: dict[str, list[Any]] = {
    "reasoning and text": [{"text": "Hmm."}, "</think>", "<response>", {"text": "Hello."}, *END],
    "empty reasoning": ["</think>", "<response>", {"text": "Hello."}, *END],
    "unicode reasoning": [{"text": UNICODE}, "</think>", "<response>", {"text": UNICODE}, *END],
    "cut reasoning": [{"text": "Hmm, let me"}, "length"],
    "reasoning alone": [{"text": "Hmm."}, "</think>", "</message>", "stop"],
    "reasoning without an end": [{"text": "Hmm."}, "stop"],
    "reasoning and a call": [
        {"text": "Hmm."}, "</think>", "<response>", "</response>", "<tools>", {"control": CALL}, "</tools>", "</message>", "stop",
    ],
}  # fmt: skip
CASES = [pytest.param(False, reply, id=name) for name, reply in DIRECT.items()]
CASES += [pytest.param(True, reply, id=name) for name, reply in THINKING.items()]
OPTIONS: list[dict[str, Any]] = [{}, {"stop": ["lo", "wor"]}, {"n": 2}, {"logprobs": True}, {"max_tokens": 9}]
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details")


def joined(chunks: list[dict[str, Any]], num_choices: int) -> list[dict[str, Any]]:
    """What a client makes of the chunks of a stream, by choice."""
    choices: list[dict[str, Any]] = [
        {"content": "", "reasoning": "", "calls": {}, "logprobs": [], "finish": None} for _ in range(num_choices)
    ]
    for part in [part for chunk in chunks for part in chunk["choices"]]:
        choice, delta = choices[part["index"]], part["delta"]
        assert choice["finish"] is None
        choice["content"] += delta.get("content") or ""
        choice["reasoning"] += delta.get("reasoning_content") or ""
        assert delta.get("reasoning_content") == delta.get("reasoning")
        choice["logprobs"] += (part["logprobs"] or {}).get("content", [])
        choice["finish"] = part["finish_reason"]
        for call in delta.get("tool_calls") or ():
            _, fragments = choice["calls"].setdefault(call["index"], (call["function"].get("name"), []))
            fragments.append(call["function"]["arguments"])
    return choices


def complete(calls: dict[int, tuple[str, list[str]]], finish: str) -> list[tuple[str, str]]:
    """The calls that a client can use: of an answer that was cut off, the last may not be whole."""
    whole = [(name, "".join(fragments)) for name, fragments in calls.values()]
    for _, arguments in whole if finish == "tool_calls" else whole[:-1]:
        json.loads(arguments)
    return whole


@pytest.mark.parametrize(("thinking", "reply"), CASES)
def test_the_same_answer(http: httpx.Client, start_gateway: Start, thinking: bool, reply: list[Any]) -> None:
    steps = (1, 3, 1000)
    rules = [{"when": {"contains": f"{step:04}"}, "tokens_per_step": step, "cached_tokens": 5, "reply": reply} for step in steps]
    gateway = start_gateway(rules)
    for options in OPTIONS:
        answers = [
            answer
            for step in steps
            for answer in compared(http, gateway, {"thinking": thinking, **options}, f"{step:04}", options.get("n", 1))
        ]
        assert answers[:1] * len(answers) == answers  # however the engine cuts its output, and for every choice


def compared(http: httpx.Client, gateway: Any, options: dict[str, Any], question: str, num_choices: int) -> list[Any]:
    """The whole answer, by choice, once it is found to be the same as the streamed one."""
    options["thinking"] = {"type": "enabled" if options["thinking"] else "disabled"}
    body = {"model": "kimi-k3", "messages": [{"role": "user", "content": question}], "tools": TOOLS, **options}
    url = f"{gateway.url}/v1/chat/completions"
    whole = http.post(url, json=body, headers=gateway.headers).json()
    streamed = http.post(url, json={**body, "stream": True, "stream_options": {"include_usage": True}}, headers=gateway.headers)
    *events, done, end = streamed.text.split("\n\n")
    assert ("data: [DONE]", "") == (done, end)
    *chunks, last = [json.loads(event.removeprefix("data: ")) for event in events]
    assert {name: whole["usage"][name] for name in COUNTS} == {name: last["usage"][name] for name in COUNTS}
    answers = []
    for choice, made in zip(whole["choices"], joined(chunks, num_choices), strict=True):
        message, finish = choice["message"], choice["finish_reason"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
        assert (message["content"] or "", message.get("reasoning_content", "")) == (made["content"], made["reasoning"])
        assert finish == made["finish"]
        assert ((choice["logprobs"] or {}).get("content") or []) == made["logprobs"]
        streamed_calls = complete(made["calls"], finish)
        assert calls == streamed_calls[: len(calls)]
        assert len(streamed_calls) - len(calls) in ({0} if finish == "tool_calls" else {0, 1})  # one may be cut off
        assert finish == "length" or (finish == "tool_calls") == bool(calls)
        answers.append((message["content"], message.get("reasoning_content"), calls, finish))
    return answers
