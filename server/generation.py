"""One generation, from conversation to events: the whole pipeline on a page.

Role: steps 4 to 7 of a request: render the prompt, ask the engine, read its tokens, and remember what happened.
Invariant: every ending (finish, error, a client that leaves) runs the one `finally` of `Generation.outputs`, which frees the
engine and the places in the queue, settles the ticket and writes the record, each exactly once, and waits for nothing.
Must not: know any API's wire shape or HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from array import array
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Final, Protocol

from server.admission.admission import Admission
from server.admission.fair_queue import FairQueue
from server.admission.limits import NOTHING, Estimate, Usage
from server.choice import Choice
from server.clock import Clock
from server.context import Tenant
from server.engine.base import Engine, Sampling
from server.errors import EngineError, GatewayError, InternalError, InvalidRequestError
from server.grammar.base import Bounds, Grammar, Shape
from server.grammar.factory import GrammarFactory
from server.job import Direct, Job, Output
from server.models import ServedModel
from server.parsers.factory import ParserFactory
from server.parsers.stop import StopStrings
from server.plan import Allowance, Plan
from server.prompts.base import Prompt
from server.prompts.factory import make_format
from server.record import GenerationRecord
from server.room import check_all_choices, room_for
from server.tracing.trace import in_span

PREFIX_TOKENS: Final = 256
"""Prompts that begin with the same tokens, so many, may find each other's in the prefix cache."""


class RecordSink(Protocol):
    """Takes the record of every request that has ended. Must not raise."""

    def started(self, record: GenerationRecord) -> None: ...
    def ended(self, record: GenerationRecord) -> None: ...


class Generator:
    """Starts generations on one engine.

    `admission` says what a tenant may do, `queue` when. `salt_of` gives a tenant's cache group its prefix-cache salt, never
    empty. `formats`: those of the served models; `ValueError` where the engine's vocabulary can't speak one.
    `known_texts_bytes`: what each may keep of prompts to save work on later ones.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        sink: RecordSink,
        salt_of: Callable[[Tenant], str],
        formats: Iterable[str],
        admission: Admission,
        queue: FairQueue,
        *,
        known_texts_bytes: int = 0,
    ) -> None:
        self.engine = engine
        self.admission = admission
        self.queue = queue
        self.clock = clock
        self.sink = sink
        self._salt_of = salt_of
        self._serial = itertools.count(1)
        facts = engine.facts
        self._formats = {
            name: make_format(
                name,
                engine.vocabulary,
                engine.render_chat,
                facts.context_length,
                facts.image_rule,
                known_texts_bytes=known_texts_bytes,
            )
            for name in formats
        }
        self.parsers = {name: ParserFactory(name, engine.vocabulary) for name in self._formats}
        bounds = Bounds(**facts.answer_bounds)
        self._grammars = {name: GrammarFactory(name, engine.vocabulary, bounds) for name in self._formats}

    def check_takes_images(self, model: ServedModel, param: str) -> None:
        """Raise `InvalidRequestError` where `model` sees no images; `param` is the first one's part."""
        if self.engine.facts.image_rule is None or model.format == "plain":
            raise InvalidRequestError(f"`{param}` is an image, and `{model.name}` takes text only: send text", param=param)

    async def prepare(self, job: Job) -> Generation:
        """Render and check; nothing has reached the engine yet. Raises `InvalidRequestError`."""
        group = self._salt_of(job.context.tenant)
        prompt = await in_span(job.trace, "render", self._formats[job.model.format].render(job.conversation, group))
        facts = self.engine.facts
        room = room_for(job, len(prompt.token_ids), facts.context_length)
        check_all_choices(job.num_choices, len(prompt.token_ids), facts.context_length)
        bias = job.sampling.get("logit_bias") or {}
        if unknown := [token_id for token_id in bias if token_id >= self.engine.vocabulary.size]:
            size = self.engine.vocabulary.size
            raise InvalidRequestError(f"`logit_bias` has the token id `{unknown[0]}`; ids are below {size}", param="logit_bias")
        max_tokens = room if job.max_tokens is None else min(job.max_tokens, room)
        sampling = Sampling(max_tokens=max_tokens, **{**facts.default_sampling, **job.sampling})
        shape = _shape(job, prompt)
        stop = StopStrings(job.stop) if job.stop else None
        return Generation(self, Plan(job, prompt, sampling, shape, await self.grammar_of(job, shape), stop))

    async def grammar_of(self, job: Job, shape: Shape) -> Grammar | None:
        """What holds the answer to `shape`; None where nothing has to, or may. Raises `InvalidRequestError`."""
        if job.model.settings.grammar == "off" or job.sampling.get("ignore_eos"):  # an answer that can't end fits no grammar
            return None
        return await self._grammars[job.model.format].grammar(shape, job.context.tenant.name)

    def cache_salt(self, tenant: Tenant) -> str:
        """Of the tenant's cache group, never empty."""
        return self._salt_of(tenant)

    def calendar_ms(self, moment_s: float) -> int:
        """A moment of the monotonic clock in milliseconds since 1970."""
        return self.clock.unix_ms() - round(1000 * (self.clock.monotonic_s() - moment_s))

    def engine_id(self, job: Job) -> str:
        """A new id for one engine request. The client may have chosen the request id, and may send it twice at once."""
        return f"{job.context.tenant.name}:{job.context.request_id}:{next(self._serial)}"


def _shape(job: Job, prompt: Prompt) -> Shape:
    """What the answer must be."""
    conversation = job.conversation
    return Shape(
        thinking=prompt.in_reasoning,
        tools=[tool for _, tool in job.placed_tools],
        tool_paths=[path for path, _ in job.placed_tools],
        tool_choice=conversation.tool_choice,
        named=job.named_tool,
        parallel=job.max_calls is None,
        # A continued message begins with what the client wrote: how its JSON goes on is not known.
        response_format=None if prompt.is_continued else conversation.response_format,
        strict_only=job.model.settings.grammar == "strict",
    )


class Generation:
    """One prepared generation. `record` is complete once `outputs` has ended.

    `headers`: what the response says of the tenant's limits, known once they were looked at, refused or not.
    """

    def __init__(self, generator: Generator, plan: Plan) -> None:
        self._generator = generator
        self._plan = plan
        job, prompt = plan.job, plan.prompt
        self.headers: dict[str, str] = {}
        self.record = GenerationRecord(
            request_id=job.context.request_id,
            tenant=job.context.tenant.name,
            model=job.model.name,
            arrived_s=job.arrived_s,
            arrived_unix_ms=generator.calendar_ms(job.arrived_s),
            key_id=job.context.key_id,
            num_prompt_tokens=len(prompt.token_ids) - prompt.num_stub_tokens,
            num_images=len(prompt.images),
            num_image_tokens=sum(placed.num_tokens for placed in prompt.images),
        )

    async def outputs(self, direct: Direct | None = None) -> AsyncGenerator[Output, None]:
        """Everything all choices say; each choice's last events end with `Finish`. Must be closed (`aclosing`).

        But for what goes to the client by `direct`, in order with the rest; of several choices nothing does.
        """
        record, generator = self.record, self._generator
        allowance: Allowance | None = None
        generator.sink.started(record)
        try:
            allowance = await self._allowance()
            many = self._plan.job.num_choices > 1
            one_or_all = self._merged(allowance) if many else self._choice(0, allowance, direct).outputs()
            async with aclosing(one_or_all) as choices:
                async for output in choices:
                    yield output
            record.outcome = "finished"
        except GatewayError as error:
            record.outcome = error.outcome
            record.rejected_by = error.reason
            raise
        except Exception as error:
            record.outcome = InternalError.outcome
            raise InternalError.of(error) from error
        finally:
            record.ended_s = generator.clock.monotonic_s()
            usage = self._usage()
            record.cost_nano_usd = usage.cost_nano_usd
            if allowance is not None:
                allowance.end(usage)
            self._plan.job.on_end()
            generator.sink.ended(record)

    async def _allowance(self) -> Allowance:
        """The tenant's ticket, and places in the queue. Raises what says that there are none; nothing is held then."""
        job, admission = self._plan.job, self._generator.admission
        tenant, num_tokens, max_tokens = job.context.tenant, len(self._plan.prompt.token_ids), self._plan.sampling.max_tokens
        has_cap, num_choices = job.max_tokens is not None, job.num_choices
        estimate = Estimate(num_tokens, max_tokens * num_choices, has_cap, num_choices)
        try:
            ticket = await in_span(job.trace, "admission", admission.reserve(job.context, job.model, estimate))
        except GatewayError:
            self.headers.update(admission.headers(tenant))
            raise
        self.headers.update(ticket.headers)
        try:
            places = self._generator.queue.join(
                tenant,
                job.model.price,
                num_places=num_choices,
                num_input_tokens=num_tokens,
                num_output_tokens=min(max_tokens, admission.expected_tokens(tenant)),
                prefix_key=self._prefix_key(),
                service_class=job.service_class,
            )
        except BaseException:
            ticket.settle(NOTHING)
            raise
        self.record.queued_s = self._generator.clock.monotonic_s()
        return Allowance(ticket, places)

    def _prefix_key(self) -> bytes:
        """The same for prompts of one cache group that begin alike."""
        prompt, salt = self._plan.prompt, self._generator.cache_salt(self._plan.job.context.tenant)
        digest = hashlib.blake2b(array("I", prompt.token_ids[:PREFIX_TOKENS]).tobytes(), key=salt.encode(), digest_size=8)
        for placed in prompt.images:
            if placed.start < PREFIX_TOKENS:  # images of one size have the same tokens
                digest.update(placed.image.content_hash.encode())
        return digest.digest()

    def _usage(self) -> Usage:
        """The engine's own counts, and what they cost."""
        record = self.record
        counts = (record.num_input_tokens, record.num_cached_tokens, record.num_output_tokens)
        return Usage(*counts, cost_nano_usd=self._plan.job.model.price.nano_usd(*counts))

    def _choice(self, index: int, allowance: Allowance, direct: Direct | None = None) -> Choice:
        return Choice(self._generator, self._plan, self.record, index, allowance, direct)

    async def _merged(self, allowance: Allowance) -> AsyncGenerator[Output, None]:
        """All choices side by side, as their outputs come. The first error ends them all."""
        queue: asyncio.Queue[Output | None] = asyncio.Queue(maxsize=self._plan.job.num_choices)
        errors: list[Exception] = []
        num_left = self._plan.job.num_choices

        def end(*error: Exception) -> None:
            """Never waits: a reader that has something to read looks afterwards for what has ended."""
            nonlocal num_left
            num_left -= 1
            errors.extend(error)
            if queue.empty():
                queue.put_nowait(None)

        async def run(index: int) -> None:
            try:
                async with aclosing(self._choice(index, allowance).outputs()) as outputs:
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
            for index in range(self._plan.job.num_choices):
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
