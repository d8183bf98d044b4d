"""Calls held against their tools: delivered and reported, sampled again, or refused, streamed token by token or in one piece."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

import pytest

from server.clock import ManualClock
from server.context import RequestContext, Tenant
from server.engine.base import EngineHints
from server.engine.scripted.engine import ScriptedEngine
from server.engine.scripted.script import Rule, parse_script
from server.errors import InvalidToolCallError
from server.events import ContentDelta, Event, Finish, FinishReason, ToolCallArguments, ToolCallCut, ToolCallEnd, ToolCallStart
from server.job import Job, Output
from server.models import ServedModel
from server.prompts.base import Conversation
from server.record import GenerationRecord
from server.schemas.declared import DeclaredTools
from server.schemas.library import SchemaLibrary
from server.sections import ModelSettings
from server.vocabulary.byte import ByteVocabulary
from tests.unlimited import make_generator

PARAMETERS = {"type": "object", "properties": {"days": {"type": "integer", "maximum": 9}}, "required": ["days"]}
TOOL = {"type": "function", "function": {"name": "forecast", "parameters": PARAMETERS}}
CLOSE = [{"control": ["</tools>", "</message>"]}, "stop"]
STEPS = (1, 3, 1000)


class Replies:
    """A script that answers each request with the next of its replies, at last with the last."""

    def __init__(self, replies: list[list[Any]], tokens_per_step: int) -> None:
        data = [{"reply": reply, "tokens_per_step": tokens_per_step} for reply in replies]
        self._rules = parse_script(data, ByteVocabulary()).rules
        self.num_asked = 0

    def rule_for(self, hints: EngineHints) -> tuple[int, Rule]:
        index = min(self.num_asked, len(self._rules) - 1)
        self.num_asked += 1
        return index, self._rules[index]


class Sink:
    def __init__(self) -> None:
        self.records: list[GenerationRecord] = []

    def started(self, record: GenerationRecord) -> None: ...

    def ended(self, record: GenerationRecord) -> None:
        self.records.append(record)


class Bench:
    """A generator over an engine that answers with `replies`, one after the other."""

    def __init__(self, policy: str, *replies: list[Any], tokens_per_step: int = 1, **settings: Any) -> None:
        vocabulary = ByteVocabulary()
        self.replies = Replies(list(replies), tokens_per_step)
        self.engine = ScriptedEngine(vocabulary, self.replies)  # type: ignore[arg-type]
        self.sink = Sink()
        self.outputs: list[Output] = []
        self._model = ServedModel("k3", "kimi_k3", ("reasoning",), ModelSettings(tool_call_policy=policy, **settings))
        self._generator = make_generator(self.engine, ManualClock(), self.sink)

    async def run(self, **job: Any) -> list[Event]:
        """The events of the first choice."""
        options = {"thinking": job.pop("thinking", False), "response_format": job.pop("response_format", None)}
        conversation = Conversation(messages=[{"role": "user", "content": "hi"}], tools=[TOOL], **options)
        context = RequestContext("r1", Tenant("acme"))
        placed = [("tools[0]", TOOL)]
        tools = DeclaredTools.of(placed, SchemaLibrary())
        job = {"tools": tools, "placed_tools": placed, **job}
        generation = await self._generator.prepare(Job(context, self._model, conversation, 0.0, **job))
        async with aclosing(generation.outputs()) as outputs:
            async for output in outputs:
                self.outputs.append(output)
        return self.events()

    def events(self, choice: int = 0) -> list[Event]:
        return [event for output in self.outputs if output.choice == choice for event in output.events]

    @property
    def record(self) -> GenerationRecord:
        [record] = self.sink.records
        assert self.engine.num_unfinished == 0
        return record

    @property
    def requests(self) -> list[dict[str, Any]]:
        return self.engine.recorded()["requests"]


def call(days: Any, index: int = 1, tool: str = "forecast") -> dict[str, Any]:
    return {"control": [{"call": {"tool": tool, "index": index}}, {"argument": {"key": "days", "value": days}}, "</call>"]}


def says(text: str, *calls: dict[str, Any]) -> list[Any]:
    return [{"text": text}, {"control": ["</response>", "<tools>"]}, *calls, *CLOSE]


def content(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, ContentDelta))


def delivered(events: list[Event]) -> list[tuple[str, Any]]:
    """Calls that have ended. Nothing of a call comes before its start, and its index is its place."""
    names: list[str] = []
    fragments: list[list[str]] = []
    calls = []
    for event in events:
        if isinstance(event, ToolCallStart):
            assert event.index == len(names)
            names.append(event.name)
            fragments.append([])
        elif isinstance(event, ToolCallArguments):
            fragments[event.index].append(event.fragment)
        elif isinstance(event, ToolCallEnd):
            calls.append((names[event.index], json.loads("".join(fragments[event.index]))))
    return calls


@pytest.mark.parametrize("step", STEPS)
async def test_reported_calls_are_delivered_whatever_they_are(step: int) -> None:
    bench = Bench("report", says("Look.", call(3), call("soon", 2), call(1, 3, tool="nobody")), tokens_per_step=step)
    events = await bench.run()

    assert [("forecast", {"days": 3}), ("forecast", {"days": "soon"}), ("nobody", {"days": 1})] == delivered(events)
    assert {"delivered": 1, "invalid": 1, "undeclared": 1} == bench.record.tool_calls
    assert ("Look.", Finish(FinishReason.TOOL_CALLS)) == (content(events), events[-1])


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("wrong", [call("soon"), call(10), call(3, tool="nobody")])
async def test_a_call_that_does_not_fit_is_sampled_again_behind_what_was_sent(wrong: dict[str, Any], step: int) -> None:
    bench = Bench("retry", says("Look", wrong), says(" here.", call(3)), tokens_per_step=step)
    events = await bench.run(max_tokens=1000, sampling={"temperature": 0.0, "seed": 7})

    first, second = bench.requests
    assert ("Look here.", [("forecast", {"days": 3})]) == (content(events), delivered(events))
    assert [*first["token_ids"], *b"Look"] == second["token_ids"]
    assert (1000 - len("Look"), 1.0) == (second["sampling"]["max_tokens"], second["sampling"]["temperature"])
    assert first["sampling"]["seed"] != second["sampling"]["seed"]
    record = bench.record
    assert ("finished", {"retried": 1, "delivered": 1}) == (record.outcome, record.tool_calls)
    plain = Bench("report", says("Look here.", call(3)))
    await plain.run()
    assert plain.record.num_output_tokens == record.num_output_tokens
    assert record.num_discarded_tokens > 0


@pytest.mark.parametrize("step", STEPS)
async def test_calls_that_fit_stay_when_a_later_one_is_sampled_again(step: int) -> None:
    bench = Bench("retry", says("", call(1), call("soon", 2)), [call(2, 2), *CLOSE], tokens_per_step=step)
    events = await bench.run()

    assert [("forecast", {"days": 1}), ("forecast", {"days": 2})] == delivered(events)
    assert {"retried": 1, "delivered": 2} == bench.record.tool_calls


@pytest.mark.parametrize("step", STEPS)
async def test_reasoning_that_was_sent_is_not_sent_again(step: int) -> None:
    think = [{"text": "Hm."}, {"control": ["</think>", "<response>"]}]
    bench = Bench(
        "retry", [*think, *says("", call("soon"))], [{"text": " Well."}, think[1], *says("", call(4))], tokens_per_step=step
    )
    events = await bench.run(thinking=True)

    reasoning = "".join(event.text for event in events if not isinstance(event, ContentDelta) and hasattr(event, "text"))
    assert ("Hm. Well.", [("forecast", {"days": 4})]) == (reasoning, delivered(events))
    assert len("Hm. Well.") == bench.record.num_reasoning_tokens


async def test_a_rest_is_held_to_the_form_of_the_whole_until_it_is_another() -> None:
    """In reasoning nothing is decided; behind content the answer is no JSON any more; behind a call only calls may come."""
    think = [{"text": "Hm."}, {"control": ["</think>", "<response>"]}]
    forms: dict[str, list[Any]] = {}
    for name, first, options in (
        ("reasoning", [*think, *says("", call("soon"))], {"thinking": True}),
        ("content", says("Look", call("soon")), {}),
        ("call", says("", call(1), call("soon", 2)), {}),
        ("beginning", says("", call("soon")), {}),
    ):
        bench = Bench(
            "retry",
            first,
            [call(2, 2), *CLOSE] if name == "call" else [*think, *says("", call(3))] if options else says("", call(3)),
        )
        await bench.run(response_format={"type": "json_object"}, **options)
        forms[name] = [request["grammar"] for request in bench.requests]

    assert all(None not in form for form in forms.values())
    same = {name: first == second for name, (first, second) in forms.items()}
    assert {"reasoning": True, "content": False, "call": False, "beginning": True} == same
    assert forms["content"][1] != forms["call"][1]


async def test_a_rest_that_begins_inside_a_call_is_held_to_no_form() -> None:
    """A call opens before the one before it was closed, which fits: what stands behind it is the inside of the next."""
    opened = {"control": [{"call": {"tool": "forecast", "index": 1}}, {"argument": {"key": "days", "value": 1}}]}
    bench = Bench("retry", says("", opened, call("soon", 2)), [*CLOSE])
    with pytest.raises(InvalidToolCallError):
        await bench.run()

    first, *rest = bench.requests
    assert first["grammar"] is not None
    assert {None} == {request["grammar"] for request in rest[:1]}


@pytest.mark.parametrize("step", STEPS)
async def test_content_that_a_stop_string_holds_is_not_sent_before_the_call_fits(step: int) -> None:
    bench = Bench("retry", says("One EN", call("soon")), says("EN two", call(5)), tokens_per_step=step)
    events = await bench.run(stop=("END",))

    assert ("One EN two", [("forecast", {"days": 5})]) == (content(events), delivered(events))


@pytest.mark.parametrize("step", STEPS)
async def test_log_probabilities_are_those_of_the_content_that_was_sent(step: int) -> None:
    bench = Bench("retry", says("Loök", call("soon")), says(" here.", call(3)), tokens_per_step=step)
    events = await bench.run(sampling={"logprobs": 0})

    tokens = bytes(logprob.token_id for output in bench.outputs for logprob in output.logprobs or ())
    assert "Loök here." == content(events) == tokens.decode()


@pytest.mark.parametrize(("policy", "num_asked"), [("error", 1), ("retry", 3)])
@pytest.mark.parametrize("step", STEPS)
async def test_nothing_of_a_call_that_does_not_fit_is_sent(policy: str, num_asked: int, step: int) -> None:
    bench = Bench(policy, says("Look.", call(1), call(10, 2)), [call(10, 2), *CLOSE], tokens_per_step=step)
    with pytest.raises(InvalidToolCallError, match="`forecast`") as caught:
        await bench.run()
    assert "10" in caught.value.message
    assert "10" not in caught.value.for_log

    events = bench.events()
    assert ("Look.", [("forecast", {"days": 1})]) == (content(events), delivered(events))
    assert 1 == sum(isinstance(event, ToolCallStart) for event in events)
    assert (num_asked, "invalid_tool_call") == (bench.replies.num_asked, bench.record.outcome)
    assert 1 == bench.record.tool_calls["refused"]


@pytest.mark.parametrize("policy", ["report", "retry", "error"])
async def test_a_call_that_a_limit_cuts_off_is_cut(policy: str) -> None:
    reply = [{"text": "Look."}, {"control": ["</response>", "<tools>", {"call": {"tool": "forecast", "index": 1}}]}, "length"]
    bench = Bench(policy, reply)
    events = await bench.run()

    assert (ToolCallCut(0), Finish(FinishReason.LENGTH)) == (events[-2], events[-1])
    assert (policy == "report") == any(isinstance(event, ToolCallStart) for event in events)
    assert ({"cut": 1}, 1) == (bench.record.tool_calls, bench.replies.num_asked)


async def test_each_choice_is_sampled_again_for_itself() -> None:
    bench = Bench("retry", says("a", call("soon")), says("b", call(2)), says("c", call(3)))
    await bench.run(num_choices=2)

    assert [1, 1] == [len(delivered(bench.events(choice))) for choice in (0, 1)]
    assert {"retried": 1, "delivered": 2} == bench.record.tool_calls


@pytest.mark.parametrize(
    ("job", "calls"), [({"max_calls": 1}, [{"days": 1}]), ({"max_calls": 0}, []), ({}, [{"days": 1}, {"days": 2}])]
)
async def test_one_call_is_delivered_where_one_is_allowed(job: dict[str, Any], calls: list[Any]) -> None:
    bench = Bench("report", says("", call(1), call(2, 2)))
    events = await bench.run(**job)

    assert calls == [arguments for _, arguments in delivered(events)]
