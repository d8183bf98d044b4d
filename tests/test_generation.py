"""The pipeline over the scripted engine: every ending is remembered once and leaves nothing behind."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from server.clock import ManualClock
from server.context import RequestContext, Tenant
from server.engine.script import parse_script
from server.engine.scripted import ScriptedEngine
from server.errors import ContextLengthError, EngineDeadError, EngineError, InvalidRequestError
from server.events import ContentDelta, Event, Finish, FinishReason, ReasoningDelta
from server.generation import Generator, Job, Output
from server.models import ServedModel
from server.prompts.base import Conversation
from server.record import GenerationRecord
from server.tenancy.isolation import CacheSalts
from server.vocabulary.byte import ByteVocabulary

TENANT = Tenant("acme")
MODEL = ServedModel("kimi-k3", "kimi_k3", ("reasoning_content",))
USER = {"role": "user", "content": "hi"}


class Sink:
    """Counts what begins and keeps what ends."""

    def __init__(self) -> None:
        self.num_started = 0
        self.records: list[GenerationRecord] = []

    def started(self, record: GenerationRecord) -> None:
        self.num_started += 1

    def ended(self, record: GenerationRecord) -> None:
        self.records.append(record)


class Bench:
    """A generator over a scripted engine, and everything it remembers."""

    def __init__(self, reply: list[Any], **engine: Any) -> None:
        vocabulary = ByteVocabulary()
        tokens_per_step = engine.pop("tokens_per_step", 1)
        script = parse_script([{"reply": reply, "tokens_per_step": tokens_per_step}], vocabulary)
        self.engine = ScriptedEngine(vocabulary, script, **engine)
        self.sink = Sink()
        self.generator = Generator(self.engine, ManualClock(), self.sink, CacheSalts().of, {"kimi_k3"})

    async def outputs(self, **job: Any) -> list[Output]:
        generation = await self.generator.prepare(make_job(**job))
        async with aclosing(generation.outputs()) as outputs:
            return [output async for output in outputs]

    async def text(self, **job: Any) -> str:
        return content_of(await self.outputs(**job))

    @property
    def record(self) -> GenerationRecord:
        assert len(self.sink.records) == self.sink.num_started == 1
        assert self.engine.num_unfinished == 0
        return self.sink.records[0]


def make_job(**fields: Any) -> Job:
    thinking = fields.pop("thinking", False)
    messages = fields.pop("messages", [USER])
    conversation = Conversation(messages=messages, thinking=thinking)
    return Job(RequestContext("r1", TENANT), MODEL, conversation, arrived_s=0.0, **fields)


def events_of(outputs: list[Output], choice: int = 0) -> list[Event]:
    return [event for output in outputs if output.choice == choice for event in output.events]


def content_of(outputs: list[Output], choice: int = 0) -> str:
    return "".join(event.text for event in events_of(outputs, choice) if isinstance(event, ContentDelta))


ANSWER = [{"text": "Paris."}, {"control": ["</response>", "</message>"]}, "stop"]


async def test_an_answer_is_remembered_with_the_engines_counts() -> None:
    bench = Bench([{"text": "I think."}, {"control": ["</think>", "<response>"]}, *ANSWER], tokens_per_step=3)
    outputs = await bench.outputs(thinking=True)

    events = events_of(outputs)
    record = bench.record
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    [request] = bench.engine.recorded()["requests"]
    assert (reasoning, content_of(outputs), events[-1]) == ("I think.", "Paris.", Finish(FinishReason.STOP))
    assert (record.outcome, record.finish_reason) == ("finished", "stop")
    assert record.num_input_tokens == len(request["token_ids"])
    assert record.num_reasoning_tokens == len("I think.")
    assert record.num_output_tokens > len("I think.Paris.")
    assert request["cache_salt"]


async def test_the_salt_is_the_tenants_own_and_never_the_clients() -> None:
    bench = Bench(ANSWER)
    for tenant in (
        Tenant("a"),
        Tenant("b"),
        Tenant("a"),
        Tenant("c", cache_group="g"),
        Tenant("d", cache_group="g"),
        Tenant("g"),
    ):
        job = make_job()
        generation = await bench.generator.prepare(Job(RequestContext("r", tenant), MODEL, job.conversation, 0.0))
        async with aclosing(generation.outputs()) as outputs:
            async for _ in outputs:
                pass

    a, b, again, c, d, named_like_the_group = (request["cache_salt"] for request in bench.engine.recorded()["requests"])
    assert a == again
    assert c == d
    assert len({a, b, c, named_like_the_group}) == 4


@pytest.mark.parametrize(
    ("stop", "content"),
    [(("ris",), "Pa"), (("zzz",), "Paris."), (("s.", "Par"), ""), ((".",), "Paris"), (("Paris.!",), "Paris.")],
)
@pytest.mark.parametrize("tokens_per_step", [1, 2, 5, 100])
async def test_stop_strings_cut_the_content(stop: tuple[str, ...], content: str, tokens_per_step: int) -> None:
    bench = Bench(ANSWER, tokens_per_step=tokens_per_step)
    outputs = await bench.outputs(stop=stop)

    assert content_of(outputs) == content
    assert events_of(outputs)[-1] == Finish(FinishReason.STOP)
    assert bench.record.outcome == "finished"


async def test_stop_strings_do_not_look_into_the_reasoning() -> None:
    bench = Bench([{"text": "Paris?"}, {"control": ["</think>", "<response>"]}, *ANSWER])
    outputs = await bench.outputs(thinking=True, stop=("Paris?",))

    assert content_of(outputs) == "Paris."


@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
async def test_log_probabilities_belong_to_the_content_tokens(tokens_per_step: int) -> None:
    reply = [{"text": "I think."}, {"control": ["</think>", "<response>"]}, {"text": "né"}, *ANSWER]
    bench = Bench(reply, tokens_per_step=tokens_per_step)
    outputs = await bench.outputs(thinking=True, sampling={"logprobs": 2})

    tokens = bytes(token.token_id for output in outputs for token in output.logprobs or ())
    assert tokens == "néParis.".encode()
    assert all(len(token.top) == 2 for output in outputs for token in output.logprobs or ())


async def test_choices_are_separate_and_counted_together() -> None:
    bench = Bench(ANSWER)
    outputs = await bench.outputs(num_choices=3, sampling={"seed": 7})

    assert [content_of(outputs, choice) for choice in range(3)] == ["Paris."] * 3
    recorded = bench.engine.recorded()["requests"]
    assert sorted(request["sampling"]["seed"] for request in recorded) == [7, 8, 9]
    one = Bench(ANSWER)
    await one.outputs()
    assert bench.record.num_output_tokens == 3 * one.record.num_output_tokens
    assert bench.record.num_input_tokens == one.record.num_input_tokens


@pytest.mark.parametrize("num_choices", [1, 3])
@pytest.mark.parametrize("before", [[], [{"text": "Pa"}]])
@pytest.mark.parametrize(("word", "kind"), [("error", EngineError), ("die", EngineDeadError)])
async def test_a_failing_engine_is_remembered_as_an_error(
    word: str, kind: type[Exception], before: list[Any], num_choices: int
) -> None:
    bench = Bench([*before, word])
    with pytest.raises(kind):
        await bench.outputs(num_choices=num_choices)

    assert bench.record.outcome == "error"


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_a_reader_that_leaves_frees_the_engine(num_choices: int) -> None:
    bench = Bench([{"text": "Pa"}, "hang"])
    generation = await bench.generator.prepare(make_job(num_choices=num_choices))
    async with aclosing(generation.outputs()) as outputs:
        await anext(outputs)

    assert bench.record.outcome == "cancelled"
    assert bench.record.num_output_tokens >= 1


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_a_cancelled_reader_frees_the_engine(num_choices: int) -> None:
    bench = Bench(["hang"])
    task = asyncio.ensure_future(bench.outputs(num_choices=num_choices))
    while bench.engine.num_unfinished < num_choices:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert bench.record.outcome == "cancelled"


@pytest.mark.parametrize("max_tokens", [1, 3, None])
async def test_the_answer_fits_what_the_context_leaves(max_tokens: int | None) -> None:
    probe = Bench(ANSWER)
    await probe.outputs()
    room = 4
    bench = Bench([{"text": "Paris is the capital."}, "stop"], context_length=probe.record.num_input_tokens + room)
    outputs = await bench.outputs(max_tokens=max_tokens)

    assert bench.record.num_output_tokens == min(room, max_tokens or room)
    assert events_of(outputs)[-1] == Finish(FinishReason.LENGTH)


async def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers() -> None:
    bench = Bench(ANSWER, context_length=20)
    with pytest.raises(ContextLengthError, match=r"the prompt has \d+ tokens, the context of `kimi-k3` has 20"):
        await bench.outputs(messages=[{"role": "user", "content": "a" * 50}])

    assert bench.sink.num_started == 0


async def test_a_bias_on_an_unknown_token_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="logit_bias"):
        await Bench(ANSWER).outputs(sampling={"logit_bias": {999_999: 1.0}})
