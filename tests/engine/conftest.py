"""Scripted engines for the tests of this folder: byte vocabulary, and time that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from server.engine.base import EngineDelta, EngineHints, EngineRequest, Sampling
from server.engine.scripted.engine import ScriptedEngine
from server.engine.scripted.script import parse_script
from server.engine.scripted.timer import ManualTimer
from server.errors import GatewayError
from server.vocabulary.byte import ByteVocabulary


@dataclass
class Reader:
    """Reads one generation in a task of its own; `deltas` so far, and `error` where it ended with one."""

    deltas: list[EngineDelta] = field(default_factory=list)
    error: GatewayError | None = None
    task: asyncio.Task[None] | None = None

    async def read(self, generation: AsyncIterator[EngineDelta]) -> None:
        try:
            async for delta in generation:
                self.deltas.append(delta)
        except GatewayError as error:
            self.error = error

    @property
    def token_ids(self) -> list[int]:
        return [token_id for delta in self.deltas for token_id in delta.token_ids]


@dataclass
class Stage:
    """A scripted engine and what a test does with it."""

    engine: ScriptedEngine
    timer: ManualTimer
    num_requests: int = 0
    readers: list[Reader] = field(default_factory=list)

    def request(self, prompt: str | list[int] = "prompt", **given: Any) -> EngineRequest:
        self.num_requests += 1
        sampling = Sampling(**{"max_tokens": 10_000, **given.pop("sampling", {})})
        token_ids = self.engine.vocabulary.encode(prompt) if isinstance(prompt, str) else prompt
        defaults = {"request_id": f"r{self.num_requests}", "cache_salt": "salt"}
        return EngineRequest(token_ids=token_ids, sampling=sampling, **{**defaults, **given})

    async def ask(self, prompt: str | list[int] = "prompt", **given: Any) -> list[EngineDelta]:
        """All deltas of one request."""
        return [delta async for delta in self.engine.generate(self.request(prompt, **given))]

    async def text(self, prompt: str | list[int] = "prompt", **given: Any) -> str:
        """The whole answer as text."""
        deltas = await self.ask(prompt, **given)
        return self.engine.vocabulary.decode([token_id for delta in deltas for token_id in delta.token_ids])

    async def start(self, prompt: str | list[int] = "prompt", **given: Any) -> Reader:
        """Begin to read a request beside the test, and let it come as far as it can."""
        reader = Reader()
        reader.task = asyncio.ensure_future(reader.read(self.engine.generate(self.request(prompt, **given))))
        self.readers.append(reader)
        await self.settle()
        return reader

    async def settle(self) -> None:
        """Turns of the event loop, enough for everything that waits for nothing but turns."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.timer.advance(seconds)
        await self.settle()


@pytest.fixture
def vocabulary() -> ByteVocabulary:
    return ByteVocabulary()


@pytest.fixture
async def staged(vocabulary: ByteVocabulary) -> AsyncIterator[Callable[..., Stage]]:
    """Makes a `Stage` that plays `rules`; what still runs at the end of the test is cancelled."""
    stages: list[Stage] = []

    def stage(rules: list[dict[str, Any]] | None = None, **settings: Any) -> Stage:
        timer = ManualTimer()
        engine = ScriptedEngine(vocabulary, parse_script(rules or [], vocabulary), timer=timer, **settings)
        stages.append(Stage(engine, timer))
        return stages[-1]

    yield stage
    tasks = [reader.task for stage in stages for reader in stage.readers if reader.task is not None]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def hints() -> Callable[..., EngineHints]:
    """Hints by name."""
    return EngineHints
