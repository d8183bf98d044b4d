"""Real vLLM under load: many streams at once stay apart, and the gateway's memory stays where it is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import psutil
import pytest

Target = Any  # of conftest
pytestmark = pytest.mark.vllm

WORDS = [
    "apple", "river", "stone", "cloud", "green", "table", "house", "light", "paper", "music", "water", "bread", "chair",
    "sugar", "horse", "train", "plane", "tiger", "lemon", "ocean", "winter", "summer", "garden", "window", "silver", "orange",
    "purple", "yellow", "forest", "bridge", "castle", "island", "desert", "valley", "spring", "autumn", "market", "kitchen",
    "pocket", "button",
]  # fmt: skip
NUM_SMALL, NUM_WARM, NUM_AT_ONCE = 200, 100, 24
MAX_GROWTH_BYTES = 12 * 2**20


async def stream(http: httpx.AsyncClient, target: Target, word: str) -> tuple[str, str]:
    """The answer's id and text."""
    body = target.body(f"Repeat this word: {word}", stream=True, max_tokens=24, stream_options={"include_usage": True})
    response = await http.post(f"{target.base_url}/chat/completions", json=body, headers=target.headers)
    assert 200 == response.status_code, response.text
    *events, done, end = response.text.split("\n\n")
    assert ("data: [DONE]", "") == (done, end)
    *chunks, usage = [json.loads(event.removeprefix("data: ")) for event in events]
    ids = {chunk["id"] for chunk in [*chunks, usage]}
    assert 1 == len(ids)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "assistant" == choices[0]["delta"]["role"]
    assert [None] * (len(choices) - 1) == [choice["finish_reason"] for choice in choices[:-1]]
    assert choices[-1]["finish_reason"] in {"stop", "length"}
    assert 0 < usage["usage"]["completion_tokens"] <= 24
    return ids.pop(), "".join(choice["delta"].get("content", "") for choice in choices)


async def test_forty_streams_at_once_stay_apart(vllm_gateway: Target) -> None:
    assert 40 == len(set(WORDS))
    limits = httpx.Limits(max_connections=len(WORDS))
    async with httpx.AsyncClient(timeout=120, limits=limits) as http:
        answers = await asyncio.gather(*(stream(http, vllm_gateway, word) for word in WORDS))
    assert len(WORDS) == len({answer_id for answer_id, _ in answers})
    texts = [text.lower() for _, text in answers]
    # The model is small and may misspell a word; what it must never say is another stream's.
    assert [] == [(own, text) for own, text in zip(WORDS, texts, strict=True) if {*WORDS} - {own} & {*text.split()}]
    assert sum(own in text for own, text in zip(WORDS, texts, strict=True)) >= 36


async def test_memory_stays_flat(vllm_gateway: Target) -> None:
    target = vllm_gateway
    process = psutil.Process(target.pid)
    limits = httpx.Limits(max_connections=NUM_AT_ONCE)
    async with httpx.AsyncClient(timeout=120, limits=limits) as http:

        async def small(number: int) -> None:
            body = target.body(f"Repeat this number: {number}", max_tokens=4, stream=bool(number % 2))
            response = await http.post(f"{target.base_url}/chat/completions", json=body, headers=target.headers)
            assert 200 == response.status_code, response.text

        async def many(numbers: range) -> int:
            turns = asyncio.Semaphore(NUM_AT_ONCE)

            async def one(number: int) -> None:
                async with turns:
                    await small(number)

            await asyncio.gather(*(one(number) for number in numbers))
            return process.memory_info().rss

        warm_bytes = await many(range(NUM_WARM))
        end_bytes = await many(range(NUM_WARM, NUM_WARM + NUM_SMALL))
    assert end_bytes - warm_bytes < MAX_GROWTH_BYTES
