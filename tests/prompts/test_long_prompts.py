"""Long prompts: rendered beside the event loop, few at once, and no further than they fit."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from server.errors import ContextLengthError
from server.prompts.base import Conversation
from server.prompts.kimi_k3 import KimiK3Format
from server.vocabulary.byte import ByteVocabulary

LONG = 40_000


@pytest.mark.parametrize(
    ("long", "off_the_loop"),
    [
        ({"content": "x" * 100_000}, True),
        ({"content": [{"type": "text", "text": "x" * 100_000}]}, True),
        ({"content": "x", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1] * 100_000}}}]}, True),
        ({"content": "x" * 100}, False),
    ],
)
async def test_long_prompts_are_rendered_beside_the_loop(long: dict[str, Any], off_the_loop: bool) -> None:
    threads: set[threading.Thread] = set()

    class Watched(ByteVocabulary):
        def encode(self, text: str, most: int | None = None) -> list[int]:
            threads.add(threading.current_thread())
            return super().encode(text, most)

    kimi = KimiK3Format(Watched())
    threads.clear()
    conversation = Conversation(messages=[{"role": "assistant"} | long])
    prompts = await asyncio.gather(*(kimi.render(conversation) for _ in range(3)))
    assert prompts[0] == prompts[1] == prompts[2]
    assert off_the_loop is (threading.current_thread() not in threads)


class Merging(ByteVocabulary):
    """Claims that a token may be long, so that the size of a text says nothing; counts what it is given."""

    longest_piece = 1_000_000

    def __init__(self) -> None:
        super().__init__()
        self.num_chars = 0

    def encode(self, text: str, most: int | None = None) -> list[int]:
        self.num_chars += len(text)
        return super().encode(text, most)


async def test_nothing_is_encoded_of_what_is_too_long_anyhow() -> None:
    class Untouched(ByteVocabulary):
        def encode(self, text: str, most: int | None = None) -> list[int]:
            assert len(text) < LONG
            return super().encode(text, most)

    kimi = KimiK3Format(Untouched(), context_length=2 * LONG)
    content = [{"type": "text", "text": "x" * LONG}]
    messages = [{"role": "user", "content": "x" * LONG}, {"role": "system", "content": content}]
    with pytest.raises(ContextLengthError, match=f"have {2 * LONG} tokens or more, the context has {2 * LONG};"):
        await kimi.render(Conversation(messages))


async def test_encoding_ends_where_the_context_does() -> None:
    vocabulary = Merging()
    kimi = KimiK3Format(vocabulary, context_length=3 * LONG)
    before = vocabulary.num_chars
    with pytest.raises(ContextLengthError, match=rf"the prompt has \d+ tokens or more, the context has {3 * LONG};"):
        await kimi.render(Conversation([{"role": "user", "content": "x" * LONG}] * 100))
    assert 2 * LONG < vocabulary.num_chars - before < 4 * LONG


async def test_no_more_than_two_long_prompts_are_rendered_at_once_even_if_their_clients_leave() -> None:
    started, gate = threading.Semaphore(0), threading.Event()

    class Slow(ByteVocabulary):
        def encode(self, text: str, most: int | None = None) -> list[int]:
            if len(text) >= LONG:
                started.release()
                assert gate.wait(10)
            return super().encode(text, most)

    kimi = KimiK3Format(Slow())
    rendering = [asyncio.ensure_future(kimi.render(Conversation([{"role": "user", "content": "x" * LONG}]))) for _ in range(5)]
    for _ in range(2):
        assert await asyncio.to_thread(started.acquire, timeout=10)
    rendering[0].cancel()
    await asyncio.wait(rendering[:1])
    assert not await asyncio.to_thread(started.acquire, timeout=0.05)
    gate.set()
    prompts = await asyncio.gather(*rendering[1:])
    assert 4 == len(prompts)
