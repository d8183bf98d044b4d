"""One generation, from conversation to events: the whole pipeline on a page.

Role: steps 4 to 7 of a request: render the prompt, ask the engine, read its tokens, and remember what happened.
Invariant: every ending (finish, error, a client that leaves) runs the one `finally` of `Generation.outputs`, which frees the
engine and writes the record exactly once.
Must not: know any API's wire shape or HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from server.clock import Clock
from server.context import RequestContext, Tenant
from server.engine.base import Engine, EngineDelta, EngineHints, EngineRequest, Sampling, TokenLogprob
from server.errors import ContextLengthError, EngineError, GatewayError, InternalError, InvalidRequestError
from server.events import Event, FinishReason
from server.models import ServedModel
from server.parsers.base import Expected
from server.parsers.factory import ParserFactory
from server.parsers.stop import StopFilter, StopStrings
from server.prompts.base import Conversation, Prompt
from server.prompts.factory import make_format
from server.reading import AnswerReader
from server.record import GenerationRecord

MIN_TOKENS_OF_ALL_CHOICES: Final = 262_144
_SEEDS: Final = 2**63 - 1


@dataclass(slots=True, frozen=True)
class Job:
    """What is to be generated.

    `sampling` has only what the client set, under the names of `Sampling`'s fields. Its `seed` is that of the first choice, the
    others' are the numbers after it; negative ones, of which the engine would take -1 for none, count from 2**63 down.
    """

    context: RequestContext
    model: ServedModel
    conversation: Conversation
    arrived_s: float
    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    num_choices: int = 1
    tool_names: tuple[str, ...] = ()
    hints: EngineHints = field(default_factory=EngineHints)


@dataclass(slots=True)
class Output:
    """What one choice said since its last output. `logprobs` are those of the tokens behind the events, when asked for."""

    choice: int
    events: list[Event]
    logprobs: list[TokenLogprob] | None = None


class RecordSink(Protocol):
    """Takes the record of every request that has ended."""

    def started(self, record: GenerationRecord) -> None: ...
    def ended(self, record: GenerationRecord) -> None: ...


class Generator:
    """Starts generations on one engine.

    `salt_of` gives a tenant's cache group its prefix-cache salt, never empty. `formats`: those of the served models; `ValueError`
    where the engine's vocabulary can't speak one.
    """

    def __init__(
        self, engine: Engine, clock: Clock, sink: RecordSink, salt_of: Callable[[Tenant], str], formats: Iterable[str]
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.sink = sink
        self.salt_of = salt_of
        self.serial = itertools.count(1)
        self._formats = {
            name: make_format(name, engine.vocabulary, engine.render_chat, engine.facts.context_length) for name in formats
        }
        self.parsers = {name: ParserFactory(name, engine.vocabulary) for name in self._formats}

    async def prepare(self, job: Job) -> Generation:
        """Render and check; nothing has reached the engine yet. Raises `InvalidRequestError`."""
        prompt = await self._formats[job.model.format].render(job.conversation)
        facts = self.engine.facts
        room = facts.context_length - len(prompt.token_ids)
        if room < 1:
            raise ContextLengthError(
                f"the prompt has {len(prompt.token_ids)} tokens, the context of `{job.model.name}` has {facts.context_length}; "
                "the answer needs one at least; shorten the conversation",
                param="messages",
            )
        _check_all_choices(job.num_choices, len(prompt.token_ids), facts.context_length)
        bias = job.sampling.get("logit_bias") or {}
        if unknown := [token_id for token_id in bias if token_id >= self.engine.vocabulary.size]:
            size = self.engine.vocabulary.size
            raise InvalidRequestError(f"`logit_bias` has the token id `{unknown[0]}`; ids are below {size}", param="logit_bias")
        max_tokens = room if job.max_tokens is None else min(job.max_tokens, room)
        sampling = Sampling(max_tokens=max_tokens, **{**facts.default_sampling, **job.sampling})
        return Generation(self, job, prompt, sampling)


def _check_all_choices(num_choices: int, num_tokens: int, context_length: int) -> None:
    """The engine is given the prompt once for each choice: bounds the work of one request, and what it holds."""
    most = max(context_length, MIN_TOKENS_OF_ALL_CHOICES)
    if num_choices > 1 and num_choices * num_tokens > most:
        raise InvalidRequestError(
            f"`n` is `{num_choices}` and the prompt has {num_tokens} tokens, together {num_choices * num_tokens}; at most {most} "
            "are allowed: ask for fewer choices, or send several requests",
            param="n",
        )


class Generation:
    """One prepared generation. `record` is complete once `outputs` has ended."""

    def __init__(self, generator: Generator, job: Job, prompt: Prompt, sampling: Sampling) -> None:
        self._generator = generator
        self._job = job
        self._prompt = prompt
        self._sampling = sampling
        self._stop = StopStrings(job.stop) if job.stop else None
        self.record = GenerationRecord(
            request_id=job.context.request_id,
            tenant=job.context.tenant.name,
            model=job.model.name,
            arrived_s=job.arrived_s,
            num_input_tokens=len(prompt.token_ids),
            num_prompt_tokens=len(prompt.token_ids) - prompt.num_stub_tokens,
        )

    async def outputs(self) -> AsyncGenerator[Output, None]:
        """Everything all choices say; each choice's last events end with `Finish`. Must be closed (`aclosing`)."""
        record, generator = self.record, self._generator
        generator.sink.started(record)
        try:
            many = self._job.num_choices > 1
            async with aclosing(self._merged() if many else self._choice(0)) as choices:
                async for output in choices:
                    yield output
            record.outcome = "finished"
        except GatewayError as error:
            record.outcome = error.outcome
            raise
        except Exception as error:
            record.outcome = InternalError.outcome
            raise InternalError.of(error) from error
        finally:
            record.ended_s = generator.clock.monotonic_s()
            generator.sink.ended(record)

    async def _choice(self, index: int) -> AsyncGenerator[Output, None]:
        """One choice's outputs. The first one comes with the engine's first delta, events or not."""
        record, job, generator = self.record, self._job, self._generator
        now = generator.clock.monotonic_s
        expected = Expected(tool_names=job.tool_names)
        parser = generator.parsers[job.model.format].make(thinking=self._prompt.in_reasoning, expected=expected)
        reader = AnswerReader(parser, StopFilter(self._stop) if self._stop else None, generator.engine.vocabulary)
        first_s = last_s = 0.0
        num_tokens = 0
        started = False
        try:
            async with aclosing(generator.engine.generate(self._request(index))) as deltas:
                async for delta in deltas:
                    last_s = now()
                    num_new = len(delta.token_ids)
                    num_tokens += num_new
                    record.num_output_tokens += num_new
                    output = Output(index, *reader.read(delta))
                    if not started:
                        first_s = last_s
                        if record.first_token_s is None:
                            record.first_token_s = first_s
                        record.num_cached_tokens = max(record.num_cached_tokens, delta.num_cached_tokens)
                    if reader.finish is not None:
                        _remember_end(record, delta, reader.finish)
                        yield output
                        break
                    if output.events or not started:
                        started = True
                        yield output
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            raise EngineError("the engine gave up on this request") from error  # it was not us who were cancelled
        finally:
            record.num_reasoning_tokens += parser.num_reasoning_tokens
            record.num_tool_calls += reader.num_calls
            record.num_cut_tool_calls += reader.num_cut_calls
            if num_tokens > 1 and last_s > first_s:
                record.choice_speeds.append((num_tokens - 1) / (last_s - first_s))
            for kind, count in parser.recoveries.items():
                record.recoveries[kind] = record.recoveries.get(kind, 0) + count

    async def _merged(self) -> AsyncGenerator[Output, None]:
        """All choices side by side, as their outputs come. The first error ends them all."""
        queue: asyncio.Queue[Output | None] = asyncio.Queue(maxsize=self._job.num_choices)
        errors: list[Exception] = []
        num_left = self._job.num_choices

        def end(*error: Exception) -> None:
            """Never waits: a reader that has something to read looks afterwards for what has ended."""
            nonlocal num_left
            num_left -= 1
            errors.extend(error)
            if queue.empty():
                queue.put_nowait(None)

        async def run(index: int) -> None:
            try:
                async with aclosing(self._choice(index)) as outputs:
                    async for output in outputs:
                        await queue.put(output)
            except Exception as error:  # noqa: BLE001 - handed to the reader, who raises it
                end(error)
            except BaseException:
                end(EngineError("a choice of this request was given up"))
                raise
            else:
                end()

        running: list[asyncio.Task[None]] = []
        try:
            for index in range(self._job.num_choices):
                running.append(asyncio.ensure_future(run(index)))
                await asyncio.sleep(0)  # giving the engine a long prompt takes a while: let others have their turns between
            while num_left or not queue.empty():
                item = await queue.get()
                if item is not None:
                    yield item
                if errors:
                    raise errors[0]
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    def _request(self, index: int) -> EngineRequest:
        job, sampling = self._job, self._sampling
        if sampling.seed is not None:
            sampling = replace(sampling, seed=(sampling.seed + index) & _SEEDS)
        return EngineRequest(
            # The client may have chosen the request id, and may send it twice at once; the engine needs one that is unique.
            request_id=f"{job.context.tenant.name}:{job.context.request_id}:{next(self._generator.serial)}",
            token_ids=self._prompt.token_ids,
            sampling=sampling,
            cache_salt=self._generator.salt_of(job.context.tenant),
            hints=job.hints,
        )


def _remember_end(record: GenerationRecord, delta: EngineDelta, finish: FinishReason) -> None:
    """What the last delta of a choice tells. Raises `EngineError` where the engine ended the answer before the model did."""
    if delta.finish_reason == "abort":  # never asked for: who wants no more closes the generator
        raise EngineError("the engine ended this request before its answer was whole")
    record.finish_reason = finish.value
    if figures := delta.speculation:
        record.num_draft_tokens += figures.num_draft_tokens
        record.num_accepted_tokens += figures.num_accepted_tokens
