"""The pipeline over the scripted engine: every ending is remembered once and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from server import generation as module
from server import room
from server.clock import ManualClock
from server.context import RequestContext, Tenant
from server.engine.base import EngineDelta, EngineRequest, Take
from server.engine.scripted.engine import ScriptedEngine
from server.engine.scripted.script import parse_script
from server.errors import ContextLengthError, EngineDeadError, EngineError, InvalidRequestError
from server.events import ContentDelta, Event, Finish, FinishReason, ReasoningDelta
from server.job import Job, Output
from server.models import ServedModel
from server.parsers.stop import StopStrings
from server.prompts.base import Conversation
from server.record import GenerationRecord
from server.vocabulary.byte import ByteVocabulary
from tests.unlimited import make_generator

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
        spec = {"spec": engine.pop("spec")} if "spec" in engine else {}
        script = parse_script([{"reply": reply, "tokens_per_step": tokens_per_step, **spec}], vocabulary)
        self.engine = ScriptedEngine(vocabulary, script, **engine)
        self.sink = Sink()
        self.clock = ManualClock()
        self.generator = make_generator(self.engine, self.clock, self.sink)

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


async def test_prompts_that_begin_alike_are_told_to_the_queue_within_a_cache_group_only() -> None:
    bench = Bench(ANSWER)
    keys: list[bytes] = []
    join = bench.generator.queue.join

    def noted(*args: Any, **kwargs: Any) -> Any:
        keys.append(kwargs["prefix_key"])
        return join(*args, **kwargs)

    bench.generator.queue.join = noted  # type: ignore[method-assign]
    long = "word " * 300
    for tenant, text in [
        (TENANT, long),
        (TENANT, long + "more"),
        (TENANT, "another " + long),
        (Tenant("bravo"), long),
        (Tenant("carol", cache_group="choir"), long),
        (Tenant("dora", cache_group="choir"), long),
    ]:
        job = make_job(messages=[{"role": "user", "content": text}])
        generation = await bench.generator.prepare(replace(job, context=RequestContext("r1", tenant)))
        async with aclosing(generation.outputs()) as outputs:
            assert [output async for output in outputs]

    acme, same, other, bravo, carol, dora = keys
    assert (acme, carol) == (same, dora)
    assert 4 == len({acme, other, bravo, carol})


class CountingVocabulary(ByteVocabulary):
    """Counts the characters that it encodes."""

    num_chars = 0

    def encode(self, text: str, most: int | None = None) -> list[int]:
        self.num_chars += len(text)
        return super().encode(text, most)


async def test_texts_are_known_within_a_cache_group_only() -> None:
    vocabulary = CountingVocabulary()
    generator = make_generator(ScriptedEngine(vocabulary), ManualClock(), Sink(), known_texts_bytes=1 << 20)
    job = make_job(messages=[{"role": "user", "content": "word " * 300}])
    group = {"cache_group": "choir"}
    encoded = []
    for tenant in (TENANT, Tenant("bravo"), TENANT, Tenant("carol", **group), Tenant("dora", **group), Tenant("choir")):
        vocabulary.num_chars = 0
        await generator.prepare(replace(job, context=RequestContext("r1", tenant)))
        encoded.append(vocabulary.num_chars)
    assert [1500, 1500, 0, 1500, 0, 1500] == encoded


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

    assert bench.record.outcome == kind.outcome


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_a_dead_engine_costs_nothing(num_choices: int) -> None:
    bench = Bench(ANSWER)
    bench.engine.kill()
    with pytest.raises(EngineDeadError):
        await bench.outputs(num_choices=num_choices)

    assert (0, False) == (bench.record.num_input_tokens, bench.record.was_dispatched)
    assert [] == bench.engine.recorded()["requests"]


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_what_the_engine_refuses_costs_nothing(monkeypatch: pytest.MonkeyPatch, num_choices: int) -> None:
    async def refuse(request: EngineRequest, take: Take | None = None) -> AsyncGenerator[EngineDelta, None]:
        raise InvalidRequestError("`min_p` is refused", param="min_p")
        yield

    bench = Bench(ANSWER)
    monkeypatch.setattr(bench.engine, "generate", refuse)
    with pytest.raises(InvalidRequestError, match="min_p"):
        await bench.outputs(num_choices=num_choices)

    assert (0, False, "invalid") == (bench.record.num_input_tokens, bench.record.was_dispatched, bench.record.outcome)


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


def watch_engine(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    submitted: Callable[[int], None] = lambda number: None,
    made: Callable[[], None] = lambda: None,
) -> None:
    """Call `submitted` with 0, 1, … whenever a request reaches the engine, and `made` before each delta that leaves it."""
    generate, numbers = bench.engine.generate, iter(range(1000))

    async def watched(request: EngineRequest, take: Take | None = None) -> AsyncGenerator[EngineDelta, None]:
        submitted(next(numbers))
        async with aclosing(generate(request)) as deltas:
            async for delta in deltas:
                made()
                yield delta

    monkeypatch.setattr(bench.engine, "generate", watched)


async def test_others_have_their_turns_between_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, turns = Bench(ANSWER), 0
    turn_of_choice: list[int] = []
    watch_engine(bench, monkeypatch, lambda _: turn_of_choice.append(turns))

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    await bench.outputs(num_choices=8)
    task.cancel()

    assert len(set(turn_of_choice)) == 8


async def test_choices_of_a_long_prompt_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MIN_TOKENS_OF_ALL_CHOICES", 0)
    probe = Bench(ANSWER)
    await probe.outputs()
    num_tokens = probe.record.num_input_tokens
    bench = Bench(ANSWER, context_length=4 * num_tokens)
    with pytest.raises(
        InvalidRequestError, match=f"`n` is `5` and the prompt has {num_tokens} tokens.*{4 * num_tokens}"
    ) as caught:
        await bench.outputs(num_choices=5)

    assert caught.value.param == "n"
    assert bench.engine.recorded()["requests"] == []
    await bench.outputs(num_choices=4)
    assert len(bench.engine.recorded()["requests"]) == 4


async def test_a_short_prompt_may_have_all_its_choices_in_a_small_context() -> None:
    bench = Bench(ANSWER, context_length=200)

    assert len({output.choice for output in await bench.outputs(num_choices=128)}) == 128


async def test_choices_share_one_automaton(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(module, "StopStrings", lambda stop: made.append(stop) or StopStrings(stop))
    bench = Bench(ANSWER)
    outputs = await bench.outputs(num_choices=5, stop=("ris",))

    assert [content_of(outputs, choice) for choice in range(5)] == ["Pa"] * 5
    assert made == [("ris",)]


@pytest.mark.parametrize(
    ("seed", "expected"), [(-1, [2**63 - 1, 0]), (-2, [2**63 - 2, 2**63 - 1]), (2**63 - 1, [2**63 - 1, 0]), (None, [None, None])]
)
async def test_every_choice_has_a_seed_that_the_engine_takes(seed: int | None, expected: list[int | None]) -> None:
    bench = Bench(ANSWER)
    await bench.outputs(num_choices=2, sampling={} if seed is None else {"seed": seed})

    assert [request["sampling"]["seed"] for request in bench.engine.recorded()["requests"]] == expected


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_an_answer_that_the_engine_gave_up_is_an_error_and_not_whole(num_choices: int) -> None:
    bench = Bench([{"text": "Pa"}, "hang"])
    generation = await bench.generator.prepare(make_job(num_choices=num_choices))
    async with aclosing(generation.outputs()) as outputs:
        seen = [await anext(outputs)]
        [*_, last] = bench.engine.recorded()["requests"]
        await bench.engine.abort(last["request_id"])
        with pytest.raises(EngineError, match="before its answer was whole"):
            seen += [output async for output in outputs]

    assert not any(isinstance(event, Finish) for output in seen for event in output.events)
    assert (bench.record.outcome, bench.record.finish_reason) == ("error", None)


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_an_engine_that_cancels_its_own_work_is_an_error(num_choices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench([{"text": "Pa"}, "hang"])

    def cancel_last(number: int) -> None:
        if number == num_choices - 1:
            raise asyncio.CancelledError

    watch_engine(bench, monkeypatch, cancel_last)
    with pytest.raises(EngineError):
        await asyncio.wait_for(bench.outputs(num_choices=num_choices), 5)

    assert bench.record.outcome == "error"
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_choice_cancelled_from_outside_ends_the_others() -> None:
    bench = Bench([{"text": "Pa"}, "hang"])
    before = asyncio.all_tasks()
    reader = asyncio.ensure_future(bench.outputs(num_choices=3))
    while bench.engine.num_unfinished < 3:
        await asyncio.sleep(0)
    choices = asyncio.all_tasks() - before - {reader}
    assert len(choices) == 3
    choices.pop().cancel()
    with pytest.raises(EngineError):
        await asyncio.wait_for(reader, 60)

    assert bench.record.outcome == "error"
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("num_choices", [1, 4])
async def test_every_choice_has_its_own_speed(num_choices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench([{"text": "abc" * 20}, "stop"])
    watch_engine(bench, monkeypatch, made=lambda: bench.clock.advance(0.5 / num_choices))
    await bench.outputs(num_choices=num_choices)

    assert [pytest.approx(2, rel=0.1)] * num_choices == bench.record.choice_speeds


async def test_guessed_tokens_are_logged() -> None:
    bench = Bench([{"text": "x" * 12}, "stop"], spec={"draft": 4, "accepted": 3}, tokens_per_step=4)
    await bench.outputs()
    silent = Bench(ANSWER)
    await silent.outputs()

    fields = bench.record.log_fields()
    assert 0 < fields["accepted_tokens"] < fields["draft_tokens"]
    assert "draft_tokens" not in silent.record.log_fields()
