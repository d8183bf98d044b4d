"""`POST /v1/chat/completions`: parse, ask for a generation, answer. No logic."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import structlog
from fastapi import APIRouter, Request
from starlette.responses import Response

from server.context import RequestContext
from server.generation import Generation
from server.protocol import chat
from server.protocol.decoding import unknown_fields
from server.protocol.sampling import apply_sampling_rule
from server.protocol.schemas import schemas_of
from server.routes.chat_job import job_of
from server.routes.gateway import gateway_of
from server.streaming.chat import ChatBody, ChatChunks, ChatShape
from server.streaming.sse import CollectedAnswer, EventStream

IGNORED_HEADER = "x-k3gw-ignored"

router = APIRouter()
log = structlog.get_logger(__name__)


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, streamed or whole."""
    gateway = gateway_of(request)
    gateway.check_ready()
    async with gateway.answers.open(request.scope["state"]):
        body = await request.body()
    wanted = chat.parse(body, ignore_reserved=gateway.ignores_reserved_fields)
    if gateway.debug and (unknown := unknown_fields(body, chat.FIELDS)):
        log.debug("unknown_fields_ignored", request_id=request.state.request_id, fields=unknown)
    context = RequestContext(request.state.request_id, request.state.tenant, request.state.key_id)
    model = gateway.models.resolve(wanted.model, context.tenant)
    request.state.model = model.name
    wanted, ignored = apply_sampling_rule(wanted, model.settings.sampling)
    generator = gateway.generator()
    gateway.precheck(context.tenant, model, request.state.headers)

    async def begin() -> tuple[Generation, ChatShape]:
        schemas = await schemas_of(wanted, len(body), gateway.schemas)
        generation = await generator.prepare(job_of(wanted, schemas, context, model, request.state.arrived_s))
        request.state.record = record = generation.record
        request.state.headers = generation.headers
        shape = ChatShape(model.name, generator.clock.unix_s(), record, generator.engine.vocabulary, model.reasoning_fields)
        return generation, shape

    async def collect() -> bytes:
        generation, shape = await begin()
        return await ChatBody(shape, wanted.n or 1).collect(generation.outputs)

    async def frames() -> AsyncGenerator[bytes, None]:
        generation, shape = await begin()
        in_choice, num_choices = model.usage_in_choice, wanted.n or 1
        chunks = ChatChunks(shape, include_usage=wanted.include_usage, usage_in_choice=in_choice, num_choices=num_choices)
        return chunks.frames(generation.outputs())

    headers = {IGNORED_HEADER: ", ".join(ignored)} if ignored else {}
    if wanted.stream:
        return EventStream(frames, gateway.answers, keepalive_interval_s=gateway.keepalive_interval_s, headers=headers)
    return CollectedAnswer(collect, gateway.answers, headers=headers)
