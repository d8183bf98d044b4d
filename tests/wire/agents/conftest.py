"""A trip that agents plan: the answers of the model, as a script, and what the engine was shown of it.

Every agent is asked `QUESTION` and then `MORE`. The model thinks, says something and calls two tools at once; then one whose
call fails; then it answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from server.engine.scripted.reply import Tokens

OK = ["</message>", "stop"]
THOUGHTS = ["Both are needed.", "Now the third.", "It does not exist.", "One more."]


def _call(index: int, tool: str, **arguments: Any) -> list[Any]:
    given = [{"argument": {"key": key, "value": value}} for key, value in arguments.items()]
    return [{"call": {"tool": tool, "index": index}}, *given, "</call>"]


def _says(thought: str, text: str, *calls: list[Any]) -> list[Any]:
    tools = ["<tools>", *(item for call in calls for item in call), "</tools>"] if calls else []
    return [{"text": thought}, {"control": ["</think>", "<response>"]}, {"text": text}, {"control": ["</response>", *tools]}, *OK]


RULES: list[dict[str, Any]] = [
    {
        "when": {"contains": "Plan", "after_tools": 0},
        "reply": _says(
            THOUGHTS[0], "Let me look.",
            _call(1, "get_weather", city="Paris", days=2), _call(2, "get_time", city='Rome, "Italia" & <b>'),
        ),
    },
    {"when": {"contains": "Plan", "after_tools": 2}, "reply": _says(THOUGHTS[1], "", _call(1, "get_time", city="Atlantis"))},
    {"when": {"contains": "Plan", "last_contains": "no such city"}, "reply": _says(THOUGHTS[2], "Go to Paris, at noon.")},
    {"when": {"contains": "Oslo", "after_tools": 0}, "reply": _says("", "", _call(1, "get_weather", city="Oslo", days=1))},
    {"when": {"contains": "Oslo", "last_role": "tool"}, "reply": _says(THOUGHTS[3], "Oslo is sunny, too.")},
]  # fmt: skip


@dataclass
class Trip:
    """The gateway to plan it on, and what is said and done."""

    gateway: Any
    client: openai.AsyncOpenAI
    model: str = "kimi-k3"

    QUESTION = "Plan a trip."
    ANSWER = "Go to Paris, at noon."
    MORE = "And Oslo?"
    ANSWER_TO_MORE = "Oslo is sunny, too."
    ROME = 'Rome, "Italia" & <b>'
    CALLS = (
        ("get_weather", {"city": "Paris", "days": 2}),
        ("get_time", {"city": ROME}),
        ("get_time", {"city": "Atlantis"}),
        ("get_weather", {"city": "Oslo", "days": 1}),
    )
    THOUGHTS = tuple(THOUGHTS)

    @staticmethod
    def get_weather(city: str, days: int) -> str:
        """Get the weather of the next days in a city."""
        return f"{days} days of sun in {city}"

    @staticmethod
    def get_time(city: str) -> str:
        """Get the time in a city."""
        if city == "Atlantis":
            raise LookupError("no such city: Atlantis")
        return f"noon in {city}"

    def prompts(self) -> list[str]:
        """What the engine was shown, request by request, as text with markers."""
        engine = self.gateway.engine
        return [engine.vocabulary.decode(entry["token_ids"]) for entry in engine.recorded()["requests"]]

    def answers(self) -> list[str]:
        """What the engine said, request by request, from the channel on that the prompt has opened."""
        engine = self.gateway.engine
        rules = [engine._script.rules[entry["rule"]] for entry in engine.recorded()["requests"]]
        texts = [[id for step in rule.reply if isinstance(step, Tokens) for id in step.token_ids] for rule in rules]
        return [engine.vocabulary.decode(token_ids) + "<|end_of_msg|>" for token_ids in texts]

    def results(self) -> list[list[tuple[str, str, str]]]:
        """The tool messages that are new in each request: tool, index, text."""
        found = []
        for before, prompt in zip(["", *self.prompts()], self.prompts(), strict=False):
            parts = prompt.split('<|open|>message role="tool" tool="')[1 + before.count('message role="tool"') :]
            heads = [part.partition("<|close|>message<|sep|><|end_of_msg|>")[0].partition("<|sep|>") for part in parts]
            found.append([(*head.removesuffix('"').split('" index="'), text) for head, _, text in heads])
        return found

    def check_history(self, *, reasoning: bool) -> None:
        """Each prompt goes on where the answer to the one before ended, token for token: with its reasoning, or without any."""
        stub = '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
        prompts, answers = self.prompts(), self.answers()
        assert 5 == len(prompts)
        before = prompts[0]
        for prompt, answer in zip(prompts[1:], answers, strict=False):
            said = answer if reasoning else answer[answer.index("<|close|>think") :]
            assert before + said == prompt[: len(before + said)]
            assert stub == prompt[-len(stub) :]
            before = prompt
        assert [0, 1, 2, 3, 4] == [entry["rule"] for entry in self.gateway.engine.recorded()["requests"]]
        assert 0 == self.gateway.engine.num_unfinished

    def check_results(self) -> None:
        """Each result is bound to the call that it answers, in the order of the calls."""
        (first, both, failed, second, oslo) = self.results()
        assert ([], []) == (first, second)
        assert [("get_weather", "1", "2 days of sun in Paris"), ("get_time", "2", f"noon in {self.ROME}")] == both
        assert [("get_weather", "1", "1 days of sun in Oslo")] == oslo
        assert [("get_time", "1", True)] == [(tool, index, "no such city: Atlantis" in text) for tool, index, text in failed]


@pytest.fixture(params=[1, 7], ids=["token by token", "seven at once"])
async def trip(request: pytest.FixtureRequest, start_gateway: Callable[..., Any]) -> AsyncIterator[Trip]:
    gateway = start_gateway([{**rule, "tokens_per_step": request.param} for rule in RULES])
    key = gateway.headers["authorization"].removeprefix("Bearer ")
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as client:
        yield Trip(gateway, client)
