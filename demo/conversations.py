"""Whole conversations in the shape of the OpenAI API, each of one kind, with every answer that the model is to learn in it.

Role: what the model is taught. The share of each kind is in `WITH_TOOLS` and `WITHOUT_TOOLS`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from demo import reasoning, talk
from demo.json_answers import json_task
from demo.library import Tool
from demo.tools import Call, declaration, invented_tool, outcome, request, request_of_several, some_tools
from demo.values import CAPITALS, Values
from server.protocol.reasoning import Effort

Message = dict[str, Any]

WITH_TOOLS = {"plain": 22, "call": 40, "several": 18, "memory": 3, "declined": 6, "required": 5, "late": 3, "json": 3}
WITHOUT_TOOLS = {"plain": 46, "memory": 14, "json": 34, "unable": 3, "late": 3}


@dataclass(slots=True)
class Sample:
    """A conversation behind a shared prefix. `trained`: positions in `messages` of the answers that count.

    `tool_choice` and `response_format` are of the last answer.
    """

    messages: list[Message] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    tool_choice: Literal["auto", "required", "none"] = "auto"
    response_format: dict[str, Any] | None = None


@dataclass(slots=True, frozen=True)
class Answers:
    """Answers of the base model to fixed questions: (question, answer)."""

    short: list[tuple[str, str]]
    long: list[tuple[str, str]]


class Author:
    """Writes conversations for one effort (None: thinking off) and one list of declared tools."""

    def __init__(self, values: Values, answers: Answers, effort: Effort | None, tools: Sequence[Tool]) -> None:
        self._values = values
        self._rng = values.rng
        self._answers = answers
        self._effort = effort
        self._tools = list(tools)

    def sample(self) -> Sample:
        """A conversation of a kind by the shares."""
        shares = WITH_TOOLS if self._tools else WITHOUT_TOOLS
        kind = self._rng.choices(list(shares), list(shares.values()))[0]
        written: Sample = getattr(self, f"_{kind}")()
        if len(written.trained) > 1 and self._effort and self._rng.random() < 0.4:
            self._forget_reasoning(written)
        return written

    def _forget_reasoning(self, sample: Sample) -> None:
        """Most clients do not send reasoning back. Answers without it are history and not to be learned."""
        for position in sample.trained[:-1]:
            del sample.messages[position]["reasoning_content"]
        del sample.trained[:-1]

    def _ask(self, sample: Sample, text: str) -> None:
        sample.messages.append({"role": "user", "content": text})

    def _answer(self, sample: Sample, content: str, thought: str | None, calls: Sequence[Call] = ()) -> None:
        message: Message = {"role": "assistant", "content": content}
        if thought is not None:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = [
                {"id": f"call_{number}", "type": "function", "function": {"name": name,
                "arguments": json.dumps(arguments, ensure_ascii=False)}}
                for number, (name, arguments) in enumerate(calls)
            ]  # fmt: skip
        sample.trained.append(len(sample.messages))
        sample.messages.append(message)

    def _say(self, sample: Sample, question: str, answer: str, *, small_talk: bool = False) -> None:
        self._ask(sample, question)
        thought = reasoning.about_plain(question, self._effort, self._tools, small_talk=small_talk) if self._effort else None
        self._answer(sample, answer, thought)

    def _any_talk(self) -> tuple[str, str, bool]:
        """Question, answer, and whether it is small talk."""
        kinds = {"greeting": 26, "capital": 14, "sum": 8, "fact": 18, "echo": 9, "short": 21, "long": 4}
        kind = self._rng.choices(list(kinds), list(kinds.values()))[0]
        if kind == "capital":
            return *talk.capital(self._values), False
        if kind == "sum":
            return *talk.sum_of_two(self._values), False
        if kind == "echo":
            return *talk.echo(self._values), False
        pairs = {"greeting": list(talk.GREETINGS.items()), "fact": list(talk.FACTS.items()), "short": self._answers.short,
                 "long": self._answers.long}[kind]  # fmt: skip
        return *self._rng.choice(pairs), kind == "greeting"

    def _plain(self) -> Sample:
        sample = Sample()
        question, answer, small_talk = self._any_talk()
        self._say(sample, question, answer, small_talk=small_talk)
        return sample

    def _memory(self) -> Sample:
        """Turns of which the last needs an earlier one."""
        sample, values, rng = Sample(), self._values, self._rng
        person, color, city, code = values["person"], values["color"], values["city"], values["code"]
        (country, first), (other, second) = rng.sample(list(CAPITALS.items()), 2)
        followup = rng.choice([f"And of {other}?", f"And {other}?", f"What about {other}?"])
        turns = rng.choice([
            [(f"My name is {person}.", f"Nice to meet you, {person}!"), ("What is my name?", f"Your name is {person}.")],
            [(f"My favourite colour is {color}.", f"{color.capitalize()} is a nice colour."),
             ("What is my favourite colour?", f"Your favourite colour is {color}.")],
            [(f"I am {person} and I live in {city}.", f"Nice to meet you, {person}!"),
            ("Where do I live?", f"You live in {city}.")],
            [(f"The code is {code}. Remember it.", f"I will remember the code {code}."),
            ("What is the code?", f"The code is {code}.")],
            [(f"What is the capital of {country}?", f"The capital of {country} is {first}."),
            (followup, f"The capital of {other} is {second}.")],
        ])  # fmt: skip
        if rng.random() < 0.4:
            turns.insert(rng.choice([0, 1]), rng.choice(list(talk.GREETINGS.items())))
        for question, answer in turns:
            self._say(sample, question, answer, small_talk=question in talk.GREETINGS)
        return sample

    def _call(self) -> Sample:
        """One call; often its result and an answer, now and then talk before or after it."""
        sample = Sample()
        if self._rng.random() < 0.12:
            question, answer, small_talk = self._any_talk()
            self._say(sample, question, answer, small_talk=small_talk)
        tool = self._rng.choice(self._tools)
        text, call = request(tool, self._values)
        self._ask_for(sample, text, [call])
        self._tell_results(sample, [tool], [call], share=0.5)
        if sample.messages[-1].get("tool_calls") is None and self._rng.random() < 0.4:
            self._go_on(sample)
        return sample

    def _go_on(self, sample: Sample) -> None:
        """What comes after a finished call: thanks, talk, or the next call."""
        if self._rng.random() < 0.45:
            text, call = request(self._rng.choice(self._tools), self._values)
            self._ask_for(sample, text, [call])
        else:
            thanks = [("Thanks!", "You are welcome!"), ("Great, thank you.", "You are welcome!"), ("Perfect.", "Happy to help!")]
            question, answer, small_talk = (*self._rng.choice(thanks), True) if self._rng.random() < 0.5 else self._any_talk()
            self._say(sample, question, answer, small_talk=small_talk)

    def _ask_for(self, sample: Sample, text: str, calls: Sequence[Call]) -> None:
        self._ask(sample, text)
        thought = reasoning.about_calls(text, calls, self._effort, self._tools) if self._effort else None
        self._answer(sample, "", thought, calls)

    def _tell_results(self, sample: Sample, tools: Sequence[Tool], calls: Sequence[Call], share: float) -> None:
        results = [outcome(tool, arguments, self._values) for tool, (_, arguments) in zip(tools, calls, strict=True)]
        found = [result for result in results if result]
        if len(found) < len(results) or self._rng.random() > share:
            return
        for number, (content, _) in enumerate(found):
            sample.messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": content})
        told = " ".join(answer for _, answer in found)
        names, contents = " and ".join(dict.fromkeys(name for name, _ in calls)), "; ".join(content for content, _ in found)
        thought = reasoning.about_result(names, contents, self._effort) if self._effort else None
        self._answer(sample, told, thought)

    def _several(self) -> Sample:
        """Two or three calls in one answer."""
        sample, count = Sample(), self._rng.choice([2, 2, 2, 3])
        tool = self._rng.choice(self._tools)
        tools = [tool] * count
        asked = request_of_several(tool, self._values, count) if self._rng.random() < 0.7 else None
        if asked is None:
            tools = [self._rng.choice(self._tools) for _ in range(count)]
            parts = [request(tool, self._values) for tool in tools]
            joint = self._rng.choice([" And: ", " Then: ", " Also: ", " ", "\n"])
            asked = joint.join(text for text, _ in parts), [call for _, call in parts]
        text, calls = asked
        self._ask_for(sample, text, calls)
        self._tell_results(sample, tools[: len(calls)], calls, share=0.35)
        return sample

    def _declined(self) -> Sample:
        """Tools are declared and forbidden: the answer stays in words."""
        sample = Sample(tool_choice="none")
        if self._rng.random() < 0.3:
            question, answer, _ = self._any_talk()
        else:
            question, _ = request(self._rng.choice(self._tools), self._values)
            answer = "I can't use tools for this message."
        self._ask(sample, question)
        self._answer(sample, answer, reasoning.about_refusal(question, self._effort) if self._effort else None)
        return sample

    def _unable(self) -> Sample:
        """A request that needs a tool where there is none."""
        sample = Sample()
        [tool] = some_tools(self._rng, 1)
        text, _ = request(tool, self._values)
        self._say(sample, text, "I have no tool for that.")
        return sample

    def _required(self) -> Sample:
        """A call that the client insists on."""
        sample = Sample(tool_choice="required")
        text, call = request(self._rng.choice(self._tools), self._values)
        self._ask_for(sample, text, [call])
        return sample

    def _late(self) -> Sample:
        """A tool that is declared in the middle of the conversation."""
        [tool] = some_tools(self._rng, 1) if self._rng.random() < 0.5 else [invented_tool(self._rng)]
        sample = Sample([{"role": "system", "tools": [declaration(tool, self._rng)]}])
        text, call = request(tool, self._values)
        self._ask(sample, text)
        thought = reasoning.about_calls(text, [call], self._effort, [tool]) if self._effort else None
        self._answer(sample, "", thought, [call])
        return sample

    def _json(self) -> Sample:
        question, answer, response_format = json_task(self._values)
        sample = Sample(response_format=response_format)
        self._ask(sample, question)
        keys = list(json.loads(answer))
        self._answer(sample, answer, reasoning.about_json(question, self._effort, keys) if self._effort else None)
        return sample
