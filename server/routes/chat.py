"""`POST /v1/chat/completions`: parse, ask for a generation, answer. No logic."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import structlog
from fastapi import APIRouter, Request
from starlette.responses import Response

from server.context import RequestContext
from server.engine.base import EngineHints
from server.generation import Generation, Job
from server.models import ServedModel
from server.prompts.base import Conversation
from server.protocol import chat
from server.protocol.decoding import unknown_fields
from server.protocol.reasoning import reasoning_of
from server.protocol.tools import named_choice
from server.protocol.turn import turn_of
from server.routes.gateway import gateway_of
from server.streaming.chat import ChatBody, ChatChunks, ChatShape
from server.streaming.sse import CollectedAnswer, EventStream

router = APIRouter()
log = structlog.get_logger(__name__)

_SAMPLING_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos",
)  # fmt: skip


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, streamed or whole."""
    gateway = gateway_of(request)
    gateway.check_ready()
    async with gateway.answers.open(request.scope["state"]):
        body = await request.body()
    wanted = chat.parse(body)
    if gateway.debug and (unknown := unknown_fields(body, chat.FIELDS)):
        log.debug("unknown_fields_ignored", request_id=request.state.request_id, fields=unknown)
    context = RequestContext(request.state.request_id, request.state.tenant, request.state.key_id)
    model = gateway.models.resolve(wanted.model, context.tenant)
    request.state.model = model.name
    generator = gateway.generator()
    job = _job(wanted, context, model, request.state.arrived_s)

    async def begin() -> tuple[Generation, ChatShape]:
        generation = await generator.prepare(job)
        request.state.record = record = generation.record
        shape = ChatShape(model.name, generator.clock.unix_s(), record, generator.engine.vocabulary, model.reasoning_fields)
        return generation, shape

    async def collect() -> bytes:
        generation, shape = await begin()
        return await ChatBody(shape, wanted.n or 1).collect(generation.outputs)

    async def frames() -> AsyncGenerator[bytes, None]:
        generation, shape = await begin()
        return ChatChunks(shape, include_usage=wanted.include_usage).frames(generation.outputs())

    if wanted.stream:
        return EventStream(frames, gateway.answers, keepalive_interval_s=gateway.keepalive_interval_s)
    return CollectedAnswer(collect, gateway.answers)


def _job(wanted: chat.ChatRequest, context: RequestContext, model: ServedModel, arrived_s: float) -> Job:
    sampling: dict[str, Any] = {name: value for name in _SAMPLING_FIELDS if (value := getattr(wanted, name)) is not None}
    if wanted.logit_bias:
        sampling["logit_bias"] = wanted.bias_by_id
    if wanted.logprobs:
        sampling["logprobs"] = wanted.top_logprobs or 0
    thinking, effort = reasoning_of(wanted)
    return Job(
        context=context,
        model=model,
        conversation=_conversation(wanted, thinking, effort),
        arrived_s=arrived_s,
        sampling=sampling,
        max_tokens=wanted.output_cap,
        stop=wanted.stop_strings,
        num_choices=wanted.n or 1,
        tool_names=wanted.declared_tool_names,
        hints=_hints(wanted, context, model),
    )


def _hints(wanted: chat.ChatRequest, context: RequestContext, model: ServedModel) -> EngineHints:
    turn = turn_of(wanted.messages)
    return EngineHints(
        tenant=context.tenant.name,
        model=model.name,
        last_user_text=turn.user_text,
        last_role=turn.last_role,
        last_text=turn.last_text,
        num_tool_results=turn.num_tool_results,
    )


def _conversation(wanted: chat.ChatRequest, thinking: bool, effort: Any) -> Conversation:
    choice = wanted.tool_choice
    return Conversation(
        messages=wanted.messages,
        tools=wanted.tools or (),
        # A named function is asked for by the same note as `required`: the prompt has no other words for it.
        tool_choice="required" if named_choice(choice) else choice or "auto",  # type: ignore[arg-type]  # checked by `parse`
        thinking=thinking,
        effort=effort,
        response_format=wanted.response_format,
        template_options=wanted.chat_template_kwargs or {},
    )
