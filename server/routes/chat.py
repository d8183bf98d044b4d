"""`POST /v1/chat/completions`: parse, ask for a generation, answer. No logic."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import structlog
from fastapi import APIRouter
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from server.body import MIN_LIFTED_BYTES, Body, read_body
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
from server.streaming.chat import ChatBody, ChatChunks, ChatShape, Outputs
from server.streaming.sse import CollectedAnswer, EventStream, StreamWriter
from server.tracing.trace import RequestTrace, in_span

PATH: Final = "/v1/chat/completions"
IGNORED_HEADER = "x-k3gw-ignored"

router = APIRouter()
log = structlog.get_logger(__name__)


class _Endpoint:
    """The route as an ASGI application, so that what its answer needs while it is made is all that stays there."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await create_chat_completion(scope["app"].state.gateway, scope["state"], receive)
        await answer(scope, receive, send)


endpoint: Final = _Endpoint()
router.routes.append(Route(PATH, endpoint, methods=["POST"]))


async def create_chat_completion(gateway: Gateway, state: dict[str, Any], receive: Receive) -> EventStream | CollectedAnswer:
    """The answer to a conversation, streamed or whole. `state`: of the request."""
    gateway.check_ready()
    with ExitStack() as files:  # what is not answered holds nothing
        async with gateway.answers.open(state):
            body = await _read(receive)
            files.callback(body.close)
            wanted, sources = await gateway.parser.parse(body, ignore_reserved=gateway.ignores_reserved_fields)
        if gateway.debug and (unknown := unknown_fields(body.json, chat.FIELDS)):
            log.debug("unknown_fields_ignored", request_id=state["request_id"], num_fields=len(unknown))
        context = RequestContext(state["request_id"], state["tenant"], state["key_id"])
        model = gateway.models.resolve(wanted.model, context.tenant)
        state["model"] = model.name
        trace: RequestTrace | None = state["trace"]
        if trace is not None and gateway.tracer is not None:
            gateway.tracer.identify(trace, context.tenant.name)
            describe(trace, wanted)
        wanted, ignored = apply_sampling_rule(wanted, model.settings.sampling)
        generator = gateway.generator()
        gateway.precheck(context.tenant, model, state["headers"])
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
            job = job_of(wanted, schemas, context, model, state["arrived_s"], images, trace)
            generation = await generator.prepare(job)
            files.pop_all()
        state["record"] = record = generation.record
        record.client = state.get("client")
        state["headers"] = generation.headers
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
        return EventStream(frames, gateway.answers, rounds=gateway.silence_rounds, headers=headers)
    return CollectedAnswer(collect, gateway.answers, headers=headers)


async def _read(receive: Receive) -> Body:
    """The body. Raises `ClientDisconnect`."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        data = message.get("body", b"")
        if len(data) <= MIN_LIFTED_BYTES:  # as `read_body` would
            return Body(data, len(data))
    return await read_body(_chunks(message, receive))


async def _chunks(message: Message, receive: Receive) -> AsyncGenerator[bytes, None]:
    """A body, as it arrives, from its first `message` on."""
    while True:
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        if chunk := message.get("body"):
            yield chunk
        if not message.get("more_body", False):
            return
        message = await receive()


async def _images(
    gateway: Gateway, sources: Sequence[ImageSource], body: Body, tenant: Tenant, trace: RequestTrace | None
) -> LoadedImages | None:
    """What is at `sources`; None where there are none."""
    if not sources:
        return None
    scope = gateway.generator().cache_salt(tenant).encode()
    return await in_span(trace, "media", gateway.media.load(sources, body.payloads, tenant, scope), images=len(sources))
