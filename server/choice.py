"""One choice of a generation: engine deltas in, outputs out.

Role: steps 6 and 7 of a request. Where the model's `tool_call_policy` is `retry`, a call that does not fit its tool is taken back
before anything of it was sent, and the answer goes on, sampled anew, from what was sent before it.
Invariant: what is passed on and what is remembered do not depend on how the engine split its tokens into deltas.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

import structlog

from server.calls import CallFault, CallGate
from server.engine.base import EngineDelta, EngineRequest
from server.errors import EngineDeadError, EngineError, GatewayError, InvalidToolCallError
from server.events import ContentDelta, Event, FinishReason
from server.grammar.base import Shape
from server.job import Direct, Output
from server.pace import Pace
from server.parsers.base import Expected
from server.parsers.stop import StopFilter
from server.plan import Allowance, Pipeline, Plan
from server.quoting import cut
from server.reading import AnswerReader
from server.record import GenerationRecord
from server.resampling import SentAnswer, Start, single
from server.tracing.engine_span import traced
from server.tracing.trace import in_span

RETRY_TEMPERATURE: Final = 1.0  # at least; a greedy answer would only be the same again

_SEEDS: Final = 2**63 - 1
log = structlog.get_logger(__name__)


class Choice:
    """Choice `index` of a generation; what happens is remembered in `record`.

    `direct`: where there is one, what can go that way is not among the outputs.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        plan: Plan,
        record: GenerationRecord,
        index: int,
        allowance: Allowance,
        direct: Direct | None = None,
    ) -> None:
        self._ticket = allowance.ticket
        self._place = allowance.places[index]
        self._pipeline = pipeline
        self._plan = plan
        self._record = record
        self._index = index
        settings = plan.job.model.settings
        self._holds = settings.tool_call_policy != "report"
        self._num_retries_left = settings.tool_call_retries if settings.tool_call_policy == "retry" else 0
        self._sent = SentAnswer(pipeline.engine.vocabulary.control_ids) if self._num_retries_left else None
        self._is_remembered = False
        self._content: list[str] | None = None if plan.job.answer_schema is None else []
        self._direct = direct
        self._pace = Pace(pipeline.clock.monotonic_s)
        self._open_reader()

    async def outputs(self) -> AsyncGenerator[Output, None]:
        """What the choice says. The first output comes with the engine's first delta, events or not. Must be closed."""
        request, pace = self._request(), self._pace
        take = self._take if self._can_take else None
        record, place, ticket, trace = self._record, self._place, self._ticket, self._plan.job.trace
        asked = started = False
        try:
            await in_span(trace, "queue", place.wait(), choice=self._index)
            self._dispatched(pace.go_on())
            while True:
                asked = True
                pace.ask()
                async with aclosing(traced(trace, self._pipeline.engine, request, self._index, take)) as deltas:
                    async for delta in deltas:
                        now_s = self._count(len(delta.token_ids))
                        if not started:
                            self._prefilled(delta, now_s)
                        output = self._read(delta)
                        if self._reader.finish is not None:
                            record.engine_done(pace)
                            self._remember_end(delta, self._reader.finish)
                            yield output
                            return
                        if output.events or not started:
                            started = True
                            yield output
                        ticket.produced(record.num_output_tokens)
                        if self._gate.fault is not None:
                            break
                pace.go_on()
                request = await self._request_again()
        except GatewayError as error:
            self._refused(error, asked)
            raise
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            raise EngineError("the engine gave up on this request") from error  # it was not us who were cancelled
        finally:
            place.leave()
            self._remember()
            record.count_pace(pace)

    @property
    def _can_take(self) -> bool:
        """Whether nothing of the answer can be such that it must be ended, or taken back, before the engine ends it."""
        return self._direct is not None and self._plan.stop is None and self._plan.sampling.logprobs is None and not self._holds

    def _take(self, token_ids: Sequence[int]) -> bool:
        """As in `Engine.generate`: read and send a delta in the engine's own turn, if its client can have it at once."""
        direct = self._direct
        if direct is None or not direct.is_ready():
            return False
        self._count(len(token_ids))
        if events := self._reader.read_tokens(token_ids):
            self._keep(events)
            direct.send(Output(self._index, events))
        self._ticket.produced(self._record.num_output_tokens)
        return True

    def _count(self, num_new_tokens: int) -> float:
        """The engine's next output has come, with so many tokens; the time."""
        now_s = self._pace.came(num_new_tokens)
        self._record.num_output_tokens += num_new_tokens
        self._place.produced(num_new_tokens)
        return now_s

    def _dispatched(self, now_s: float) -> None:
        """The engine is about to be asked: from here on the prompt costs. Raises `EngineDeadError` where nobody can be asked."""
        if self._pipeline.engine.dead:
            raise EngineDeadError("the engine has died; this replica takes no more requests")
        record = self._record
        if record.admitted_s is None:
            record.admitted_s = now_s
            record.num_input_tokens = len(self._plan.prompt.token_ids)

    def _refused(self, error: GatewayError, asked: bool) -> None:
        """The engine did not take what it was `asked`: nothing costs, unless it failed itself, or another choice was begun."""
        if asked and self._record.first_token_s is None and not isinstance(error, EngineError | EngineDeadError):
            self._record.admitted_s = None
            self._record.num_input_tokens = 0

    def _prefilled(self, delta: EngineDelta, now_s: float) -> None:
        """The first delta: the prompt has been read. Of several choices the first to speak tells what was cached before."""
        record = self._record
        self._place.prefilled(delta.num_cached_tokens)
        if record.first_token_s is None:
            record.first_token_s = now_s
            record.num_cached_tokens = delta.num_cached_tokens
            self._ticket.prefilled(delta.num_cached_tokens)

    def _read(self, delta: EngineDelta) -> Output:
        """What the client may have of `delta`."""
        output = self._read_held(delta, self._sent) if self._sent else Output(self._index, *self._reader.read(delta))
        self._keep(output.events)
        return output

    def _keep(self, events: list[Event]) -> None:
        """The content among `events`, where it is to be held against a schema."""
        if self._content is not None:
            self._content += [event.text for event in events if isinstance(event, ContentDelta)]

    def _read_held(self, delta: EngineDelta, sent: SentAnswer) -> Output:
        """As `_read`, and note which tokens are behind what the client has."""
        output = Output(self._index, [], None if delta.logprobs is None else [])
        for piece in single(delta):
            events, logprobs = self._reader.read(piece)
            output.events += events
            if output.logprobs is not None:
                output.logprobs += logprobs or ()
            sent.add(piece, events, between=not self._gate.is_holding)
            if self._reader.finish is not None:
                break
        return output

    def _open_reader(self) -> None:
        plan, job = self._plan, self._plan.job
        expected = Expected(tool_names=job.tools.names, types_of=job.tools.types_of, max_calls=job.max_calls)
        self._parser = self._pipeline.parsers[job.model.format].make(thinking=plan.prompt.in_reasoning, expected=expected)
        self._gate = CallGate(job.tools, holds=self._holds)
        stop = StopFilter(plan.stop) if plan.stop else None
        self._reader = AnswerReader(self._parser, stop, self._pipeline.engine.vocabulary, self._gate)

    def _request(self) -> EngineRequest:
        plan, job, sampling = self._plan, self._plan.job, self._plan.sampling
        if sampling.seed is not None:
            sampling = replace(sampling, seed=(sampling.seed + self._index) & _SEEDS)
        grammar, hints = plan.grammar, job.hints
        if grammar is not None and grammar.shortest and _demands(plan.shape):
            hints = replace(hints, example=lambda: grammar.shortest)
        return EngineRequest(
            request_id=self._pipeline.engine_id(job),
            token_ids=plan.prompt.token_ids,
            sampling=sampling,
            cache_salt=self._pipeline.cache_salt(job.context.tenant),
            media=plan.prompt.images,
            grammar=grammar.structural_tag if grammar else None,
            reasoning_ended=True if grammar else None,
            hints=hints,
        )

    async def _request_again(self) -> EngineRequest:
        """The rest of the answer, behind what was sent, sampled anew. Raises `InvalidToolCallError` where no retry is left."""
        fault, sent, plan = self._gate.faults[-1], self._sent, self._plan
        if sent is None or self._num_retries_left == 0:
            self._record.count_calls({"refused": 1})
            raise InvalidToolCallError(f"the model called `{cut(fault.name)}` with arguments that do not fit", what=fault.what)
        self._num_retries_left -= 1
        self._report(fault)
        self._record.count_calls({"retried": 1})
        num_tokens = sent.take_back()
        self._record.num_output_tokens -= num_tokens
        self._record.num_discarded_tokens += num_tokens
        self._open_reader()
        if sent.num_sent:
            self._reader.read(sent.delta())
        request, so_far = self._request(), sent.delta().token_ids
        grammar = plan.grammar
        if grammar is not None and sent.num_sent:
            grammar = await self._pipeline.grammar_of(plan.job, _continued(plan.shape, sent.start)) if sent.start else None
        sampling = request.sampling
        if sampling.seed is not None:
            seed = sampling.seed + plan.job.num_choices * (self._num_retries_left + 1)
            sampling = replace(sampling, seed=seed & _SEEDS)
        return replace(
            request,
            token_ids=[*request.token_ids, *so_far],
            grammar=grammar.structural_tag if grammar else None,
            reasoning_ended=True if grammar else None,
            hints=plan.job.hints if sent.num_sent else request.hints,
            sampling=replace(
                sampling,
                temperature=max(sampling.temperature, RETRY_TEMPERATURE),
                max_tokens=sampling.max_tokens - len(so_far),
            ),
        )

    def _remember_end(self, delta: EngineDelta, finish: FinishReason) -> None:
        """What the last delta tells. Raises `EngineError` where the engine ended the answer before the model did."""
        if delta.finish_reason == "abort":  # never asked for: who wants no more closes the generator
            raise EngineError("the engine ended this request before its answer was whole")
        record = self._record
        record.finished(self._index, finish.value)
        if figures := delta.speculation:
            record.num_draft_tokens += figures.num_draft_tokens
            record.num_accepted_tokens += figures.num_accepted_tokens
        if self._content is not None and finish is not FinishReason.TOOL_CALLS:
            record.count_answer("cut" if finish is FinishReason.LENGTH else self._verdict("".join(self._content)))
        self._remember()

    def _verdict(self, content: str) -> str:
        """Whether a whole answer is what its schema asks for."""
        schema = self._plan.job.answer_schema
        validator = None if schema is None else schema.validator
        return "delivered" if validator is None or validator.errors_in(content) is None else "invalid"

    def _remember(self) -> None:
        """What is known of the choice, once."""
        if self._is_remembered:
            return
        self._is_remembered = True
        record = self._record
        record.num_reasoning_tokens += self._parser.num_reasoning_tokens
        record.count_calls(self._reader.calls)
        for kind, count in self._parser.recoveries.items():
            record.recoveries[kind] = record.recoveries.get(kind, 0) + count
        for fault in self._gate.faults:
            self._report(fault)

    def _report(self, fault: CallFault) -> None:
        """Say in the log that a tool was called wrongly. Which and how repeats what tenant or model said: not for the log."""
        record, known = self._record, fault.name in self._plan.job.tools.names
        log.warning("invalid_tool_call", request_id=record.request_id, tenant=record.tenant, model=record.model, known_tool=known)


def _demands(shape: Shape) -> bool:
    """Whether an answer in plain words would not do."""
    return shape.tool_choice == "required" or (shape.response_format or {}).get("type", "text") != "text"


def _continued(shape: Shape, start: Start) -> Shape:
    """The form of the rest of an answer behind what was sent. One that has begun to speak before a call is not JSON any more."""
    response_format = shape.response_format if start == "think" else None
    return replace(shape, thinking=start == "think", after_calls=start == "calls", response_format=response_format)
