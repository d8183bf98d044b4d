"""`POST /v1/chat/completions`: parse, ask for a generation, answer. No logic."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from functools import partial

import structlog
from fastapi import APIRouter, Request
from starlette.responses import Response

from server.body import Body, read_body
from server.context import RequestContext, Tenant
from server.gateway import Gateway
from server.generation import Generation
from server.job import Direct
from server.media.loader import LoadedImages
from server.protocol import chat
from server.protocol.decoding import unknown_fields
from server.protocol.messages import ImageSource
from server.protocol.sampling import apply_sampling_rule
from server.protocol.schemas import schemas_of
from server.routes.chat_job import job_of
from server.routes.chat_trace import describe
from server.routes.gateway import gateway_of
from server.streaming.chat import ChatBody, ChatChunks, ChatShape, Outputs
from server.streaming.sse import CollectedAnswer, EventStream, StreamWriter
from server.tracing.trace import RequestTrace, in_span

IGNORED_HEADER = "x-k3gw-ignored"

router = APIRouter()
log = structlog.get_logger(__name__)


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, streamed or whole."""
    gateway = gateway_of(request)
    gateway.check_ready()
    with ExitStack() as files:  # what is not answered holds nothing
        async with gateway.answers.open(request.scope["state"], is_unread=True):
            body = await read_body(request.stream())
            files.callback(body.close)
            wanted, sources = await gateway.parser.parse(body, ignore_reserved=gateway.ignores_reserved_fields)
        if gateway.debug and (unknown := unknown_fields(body.json, chat.FIELDS)):
            log.debug("unknown_fields_ignored", request_id=request.state.request_id, num_fields=len(unknown))
        context = RequestContext(request.state.request_id, request.state.tenant, request.state.key_id)
        model = gateway.models.resolve(wanted.model, context.tenant)
        request.state.model = model.name
        trace: RequestTrace | None = request.state.trace
        if trace is not None and gateway.tracer is not None:
            gateway.tracer.identify(trace, context.tenant.name)
            describe(trace, wanted)
        wanted, ignored = apply_sampling_rule(wanted, model.settings.sampling)
        generator = gateway.generator()
        gateway.precheck(context.tenant, model, request.state.headers)
        if sources:
            generator.check_takes_images(model, sources[0].param)
        files.pop_all()

    async def begin() -> tuple[Generation, ChatShape]:
        with ExitStack() as files:
            files.callback(body.close)
            schemas = await schemas_of(wanted, len(body.json), gateway.schemas)
            images = await _images(gateway, sources, body, context.tenant, trace)
            if images is not None:
                files.callback(images.close)
            job = job_of(wanted, schemas, context, model, request.state.arrived_s, images, trace)
            generation = await generator.prepare(job)
            files.pop_all()
        request.state.record = record = generation.record
        record.client = request.scope["state"].get("client")
        request.state.headers = generation.headers
        shape = ChatShape(model.name, generator.clock.unix_s(), record, generator.engine.vocabulary, model.reasoning_fields)
        if trace is not None:
            trace.attributes["gen_ai.response.id"] = shape.id
        return generation, shape

    def outputs_of(generation: Generation, direct: Direct) -> Outputs:
        if trace is None or trace.content is None or not trace.is_sampled:
            return generation.outputs(direct)
        return trace.content.hear(generation.outputs())  # it must hear all

    async def collect() -> bytes:
        generation, shape = await begin()
        body = ChatBody(shape, wanted.n or 1)
        return await body.collect(lambda: outputs_of(generation, Direct(lambda: True, body.add)))

    async def frames(writer: StreamWriter) -> AsyncGenerator[bytes, None]:
        generation, shape = await begin()
        in_choice, num_choices = model.usage_in_choice, wanted.n or 1
        chunks = ChatChunks(shape, include_usage=wanted.include_usage, usage_in_choice=in_choice, num_choices=num_choices)
        return chunks.frames(outputs_of(generation, Direct(writer.is_ready, partial(chunks.send, writer.write))))

    headers = {IGNORED_HEADER: ", ".join(ignored)} if ignored else {}
    if wanted.stream:
        return EventStream(frames, gateway.answers, keepalive_interval_s=gateway.keepalive_interval_s, headers=headers)
    return CollectedAnswer(collect, gateway.answers, headers=headers)


async def _images(
    gateway: Gateway, sources: Sequence[ImageSource], body: Body, tenant: Tenant, trace: RequestTrace | None
) -> LoadedImages | None:
    """What is at `sources`; None where there are none."""
    if not sources:
        return None
    scope = gateway.generator().cache_salt(tenant).encode()
    return await in_span(trace, "media", gateway.media.load(sources, body.payloads, tenant, scope), images=len(sources))
