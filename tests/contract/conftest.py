"""The engines that must keep the contract.

`scripted` is made here for each test. `vllm` is the session's one real engine, which lives on the session's event loop.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from server.engine.base import Engine, EngineDelta, EngineHints, EngineRequest, Sampling, Take
from server.engine.scripted.engine import ScriptedEngine
from server.engine.scripted.script import parse_script
from server.vocabulary.byte import ByteVocabulary

RULES = [
    {"when": {"contains": "colours"}, "tokens_per_step": 3, "reply": [{"repeat": {"times": 20, "of": [{"text": "red, "}]}}]},
    {"when": {"contains": "numbers"}, "tokens_per_step": 2, "reply": [{"repeat": {"times": 20, "of": [{"text": "4, 5, "}]}}]},
]

_numbers = itertools.count()


@dataclass
class Client:
    """Asks an engine. Each client has a cache salt of its own, so tests do not meet in the prefix cache."""

    engine: Engine
    salt: str = field(default_factory=lambda: f"contract-{next(_numbers)}")

    def request(self, prompt: str | list[int] = "Name some colours.", **given: Any) -> EngineRequest:
        """A greedy request of few tokens, but for what is `given`: fields of the request, `sampling` as a mapping."""
        sampling = Sampling(**{"max_tokens": 8, "temperature": 0.0, **given.pop("sampling", {})})
        text = prompt if isinstance(prompt, str) else ""
        token_ids = self.engine.vocabulary.encode(prompt) if isinstance(prompt, str) else prompt
        defaults = {
            "request_id": f"contract:{next(_numbers)}",
            "cache_salt": self.salt,
            "hints": EngineHints(last_user_text=text),
        }
        return EngineRequest(token_ids=token_ids, sampling=sampling, **{**defaults, **given})

    def generate(
        self, prompt: str | list[int] = "Name some colours.", take: Take | None = None, **given: Any
    ) -> AsyncIterator[EngineDelta]:
        return self.engine.generate(self.request(prompt, **given), take)

    async def ask(self, prompt: str | list[int] = "Name some colours.", **given: Any) -> list[EngineDelta]:
        """All deltas of one request."""
        return [delta async for delta in self.generate(prompt, **given)]

    async def ask_in_chat(self, text: str, **given: Any) -> list[EngineDelta]:
        """As `ask`, with `text` as a user's message and the response channel open: a model of K3's shape comes to an end here."""
        encode, control = self.engine.vocabulary.encode, self.engine.vocabulary.control
        words = {name: [control[f"<|{name}|>"]] for name in ("open", "close", "sep", "end_of_msg")}
        user = [*words["open"], *encode("message"), *encode(' role="user"'), *words["sep"], *encode(text)]
        user += [*words["close"], *encode("message"), *words["sep"], *words["end_of_msg"]]
        assistant = [*words["open"], *encode("message"), *encode(' role="assistant"'), *words["sep"]]
        stub = [*words["open"], *encode("response"), *words["sep"]]
        return await self.ask([*user, *assistant, *stub], hints=EngineHints(last_user_text=text), **given)


@pytest.fixture(params=["scripted", pytest.param("vllm", marks=pytest.mark.vllm)])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "scripted":
        vocabulary = ByteVocabulary()
        return ScriptedEngine(vocabulary, parse_script(RULES, vocabulary), context_length=4096, seats=4)
    real: Engine = request.getfixturevalue("vllm_engine")
    return real


@pytest.fixture
def client(engine: Engine) -> Client:
    return Client(engine)


@pytest.fixture
def new_client(engine: Engine) -> Callable[[], Client]:
    """Makes clients with different cache salts."""
    return lambda: Client(engine)
