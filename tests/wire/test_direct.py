"""What is sent in the engine's own turn, past all that reads outputs, is to the byte what would have been sent the long way."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from server.choice import Choice
from tests.wire.test_whole_and_streamed import CASES, TOOLS

Start = Callable[..., Any]
STEPS = (1, 2, 3, 1000)
OPTIONS: list[dict[str, Any]] = [{}, {"stop": ["lo"]}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"max_tokens": 9}]
NEW_EACH_TIME = re.compile(r'chatcmpl-\w+|call_\w+|"created":\d+')


@pytest.mark.parametrize(("thinking", "reply"), CASES)
def test_both_ways_say_the_same(
    http: httpx.Client, start_gateway: Start, monkeypatch: pytest.MonkeyPatch, thinking: bool, reply: list[Any]
) -> None:
    rules = [{"when": {"contains": f"{step:04}"}, "tokens_per_step": step, "cached_tokens": 5, "reply": reply} for step in STEPS]
    gateway = start_gateway(rules)
    taken = _count_taken(monkeypatch)
    bodies = [
        _body(thinking, f"{step:04}", streamed, options) for step in STEPS for streamed in (True, False) for options in OPTIONS
    ]
    direct = [_answer(http, gateway, body) for body in bodies]
    num_taken = len(taken)
    monkeypatch.setattr(Choice, "_can_take", False)
    plain = [_answer(http, gateway, body) for body in bodies]
    assert plain == direct
    assert num_taken == len(taken)
    has_middle = direct[0].count("data: ") > 5  # the first and the last output never go that way
    assert num_taken > 0 or not has_middle


def _count_taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets an entry for each delta that is taken."""
    taken: list[int] = []
    take = Choice._take

    def counted(self: Choice, token_ids: Sequence[int]) -> bool:
        is_taken = take(self, token_ids)
        taken.extend([len(token_ids)] * is_taken)
        return is_taken

    monkeypatch.setattr(Choice, "_take", counted)
    return taken


def _body(thinking: bool, question: str, streamed: bool, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": "kimi-k3",
        "messages": [{"role": "user", "content": question}],
        "thinking": {"type": "enabled" if thinking else "disabled"},
        "tools": TOOLS,
        "stream": streamed,
        **({"stream_options": {"include_usage": True}} if streamed else {}),
        **options,
    }


def _answer(http: httpx.Client, gateway: Any, body: dict[str, Any]) -> str:
    response = http.post(f"{gateway.url}/v1/chat/completions", json=body, headers=gateway.headers)
    assert 200 == response.status_code
    text = NEW_EACH_TIME.sub("", response.text)
    return text if body.get("n", 1) == 1 else "".join(sorted(text.splitlines(keepends=True)))  # choices come as they may
