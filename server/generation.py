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
from typing import Any, Protocol

from server.clock import Clock
from server.context import RequestContext, Tenant
from server.engine.base import Engine, EngineDelta, EngineHints, EngineRequest, Sampling, TokenLogprob
from server.errors import ContextLengthError, GatewayError, InternalError, InvalidRequestError
from server.events import Event
from server.models import ServedModel
from server.parsers.factory import make_parser
from server.parsers.stop import StopFilter
from server.prompts.base import Conversation, Prompt
from server.prompts.factory import make_format
from server.reading import AnswerReader
from server.record import GenerationRecord


@dataclass(slots=True, frozen=True)
class Job:
    """What is to be generated. `sampling` has only what the client set, under the names of `Sampling`'s fields."""

    context: RequestContext
    model: ServedModel
    conversation: Conversation
    arrived_s: float
    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    num_choices: int = 1
    tool_names: tuple[str, ...] = ()
    last_user_text: str = ""


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
    """Starts generations on one engine. `salt_of` gives a tenant's cache group its prefix-cache salt, never
    empty. `formats`: those of the served models; `ValueError` where the engine's vocabulary can't speak one."""

    def __init__(
        self, engine: Engine, clock: Clock, sink: RecordSink, salt_of: Callable[[Tenant], str], formats: Iterable[str]
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.sink = sink
        self.salt_of = salt_of
        self.serial = itertools.count(1)
        self._formats = {name: make_format(name, engine.vocabulary, engine.render_chat) for name in formats}
        for name in self._formats:
            make_parser(name, engine.vocabulary)  # the first one of a vocabulary builds its tables

    async def prepare(self, job: Job) -> Generation:
        """Render and check; nothing has reached the engine yet. Raises `InvalidRequestError`."""
        prompt = await self._formats[job.model.format].render(job.conversation)
        facts = self.engine.facts
        room = facts.context_length - len(prompt.token_ids)
        if room < 1:
            raise ContextLengthError(
                f"the prompt has {len(prompt.token_ids)} tokens, the context of `{job.model.name}` has {facts.context_length}; "
                "shorten the conversation",
                param="messages",
            )
        bias = job.sampling.get("logit_bias") or {}
        if unknown := [token_id for token_id in bias if token_id >= self.engine.vocabulary.size]:
            size = self.engine.vocabulary.size
            raise InvalidRequestError(f"`logit_bias` has the token id `{unknown[0]}`; ids are below {size}", param="logit_bias")
        max_tokens = room if job.max_tokens is None else min(job.max_tokens, room)
        sampling = Sampling(max_tokens=max_tokens, **{**facts.default_sampling, **job.sampling})
        return Generation(self, job, prompt, sampling)


class Generation:
    """One prepared generation. `record` is complete once `outputs` has ended."""

    def __init__(self, generator: Generator, job: Job, prompt: Prompt, sampling: Sampling) -> None:
        self._generator = generator
        self._job = job
        self._prompt = prompt
        self._sampling = sampling
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
        record.engine_started_s = generator.clock.monotonic_s()
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
        record, job = self.record, self._job
        now = self._generator.clock.monotonic_s
        vocabulary = self._generator.engine.vocabulary
        parser = make_parser(job.model.format, vocabulary, thinking=self._prompt.in_reasoning, tool_names=job.tool_names)
        reader = AnswerReader(parser, StopFilter(job.stop) if job.stop else None, vocabulary.control_ids)
        started = False
        try:
            async with aclosing(self._generator.engine.generate(self._request(index))) as deltas:
                async for delta in deltas:
                    record.last_token_s = now()
                    if record.first_token_s is None:
                        record.first_token_s = record.last_token_s
                    record.num_output_tokens += len(delta.token_ids)
                    if not started:
                        record.num_cached_tokens = max(record.num_cached_tokens, delta.num_cached_tokens)
                    output = Output(index, *reader.read(delta))
                    if output.events or not started:
                        started = True
                        yield output
                    if reader.finish is not None:
                        _remember_speculation(record, delta)
                        record.finish_reason = reader.finish.value
                        break
        finally:
            record.num_reasoning_tokens += parser.num_reasoning_tokens
            record.num_tool_calls += reader.num_calls
            record.num_cut_tool_calls += reader.num_cut_calls
            for kind, count in parser.recoveries.items():
                record.recoveries[kind] = record.recoveries.get(kind, 0) + count

    async def _merged(self) -> AsyncGenerator[Output, None]:
        """All choices side by side, as their outputs come. The first error ends them all."""
        queue: asyncio.Queue[Output | Exception | None] = asyncio.Queue(maxsize=self._job.num_choices)

        async def run(index: int) -> None:
            try:
                async with aclosing(self._choice(index)) as outputs:
                    async for output in outputs:
                        await queue.put(output)
                await queue.put(None)
            except Exception as error:  # noqa: BLE001 - handed to the reader, who raises it
                await queue.put(error)

        running = [asyncio.ensure_future(run(index)) for index in range(self._job.num_choices)]
        try:
            num_left = len(running)
            while num_left:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    num_left -= 1
                else:
                    yield item
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _request(self, index: int) -> EngineRequest:
        job, sampling = self._job, self._sampling
        if index and sampling.seed is not None:
            sampling = replace(sampling, seed=sampling.seed + index)
        return EngineRequest(
            # The client may have chosen the request id, and may send it twice at once; the engine needs one that is unique.
            request_id=f"{job.context.tenant.name}:{job.context.request_id}:{next(self._generator.serial)}",
            token_ids=self._prompt.token_ids,
            sampling=sampling,
            cache_salt=self._generator.salt_of(job.context.tenant),
            hints=EngineHints(job.context.tenant.name, job.model.name, job.last_user_text),
        )


def _remember_speculation(record: GenerationRecord, delta: EngineDelta) -> None:
    if figures := delta.speculation:
        record.num_drafts += figures.num_drafts
        record.num_draft_tokens += figures.num_draft_tokens
        record.num_accepted_tokens += figures.num_accepted_tokens
