"""Asking the session's real engine."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest
import pytest_asyncio

from server.engine.base import Engine, EngineDelta, EngineRequest, Sampling
from server.prompts.base import Conversation
from server.prompts.kimi_k3 import KimiK3Format

_numbers = itertools.count()


@dataclass
class Asker:
    """Greedy requests of few tokens, but for what is given; each with a cache salt of its own."""

    engine: Engine

    def request(self, prompt: str | Sequence[int] = "Name some colours.", **given: Any) -> EngineRequest:
        number = next(_numbers)
        sampling = Sampling(**{"max_tokens": 8, "temperature": 0.0, "ignore_eos": True, **given.pop("sampling", {})})
        token_ids = self.engine.vocabulary.encode(prompt) if isinstance(prompt, str) else prompt
        return EngineRequest(
            **{"request_id": f"cpu:{number}", "cache_salt": f"cpu-{number}", **given}, token_ids=token_ids, sampling=sampling
        )

    def generate(self, prompt: str | Sequence[int] = "Name some colours.", **given: Any) -> AsyncGenerator[EngineDelta, None]:
        return self.engine.generate(self.request(prompt, **given))

    async def ask(self, prompt: str | Sequence[int] = "Name some colours.", **given: Any) -> list[EngineDelta]:
        return [delta async for delta in self.generate(prompt, **given)]

    async def token_ids(self, prompt: str | Sequence[int] = "Name some colours.", **given: Any) -> list[int]:
        return list(chain.from_iterable(delta.token_ids for delta in await self.ask(prompt, **given)))


@pytest_asyncio.fixture(loop_scope="session")
async def echo(vllm_engine: Engine) -> list[int]:
    """A prompt whose answer is sure, token by token, and repeats it: what the engine drafts from the prompt is mostly right."""
    words = "copper lantern river seven"
    conversation = Conversation([{"role": "user", "content": f"Say exactly: {words} {words} {words}"}], thinking=False)
    return (await KimiK3Format(vllm_engine.vocabulary).render(conversation)).token_ids


@pytest.fixture
def asker(vllm_engine: Engine) -> Asker:
    return Asker(vllm_engine)
