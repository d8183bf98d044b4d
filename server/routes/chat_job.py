"""A chat completion request as a job for the pipeline.

Role: the translation between `protocol/`, which knows the wire, and `job.py`, which knows what is to be generated. No checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.context import RequestContext
from server.engine.base import EngineHints
from server.images import Image
from server.job import Job
from server.media.loader import LoadedImages
from server.models import ServedModel
from server.prompts.base import Conversation
from server.protocol.chat import ChatRequest
from server.protocol.reasoning import reasoning_of
from server.protocol.schemas import RequestSchemas
from server.protocol.turn import turn_of
from server.tracing.trace import RequestTrace

_SAMPLING_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos",
)  # fmt: skip
_SERVICE_CLASSES = {"priority": 0, "auto": 1, "default": 1, "scale": 1, "flex": 2}


def job_of(
    wanted: ChatRequest,
    schemas: RequestSchemas,
    context: RequestContext,
    model: ServedModel,
    arrived_s: float,
    images: LoadedImages | None = None,
    trace: RequestTrace | None = None,
) -> Job:
    """What `wanted`, checked, asks for, with its `images`."""
    sampling: dict[str, Any] = {name: value for name in _SAMPLING_FIELDS if (value := getattr(wanted, name)) is not None}
    if wanted.logit_bias:
        sampling["logit_bias"] = wanted.bias_by_id
    if wanted.logprobs:
        sampling["logprobs"] = wanted.top_logprobs or 0
    return Job(
        context=context,
        model=model,
        conversation=_conversation(wanted, images.by_path if images else {}),
        arrived_s=arrived_s,
        sampling=sampling,
        max_tokens=wanted.output_cap,
        stop=wanted.stop_strings,
        num_choices=wanted.n or 1,
        tools=schemas.tools,
        placed_tools=tuple(wanted.placed_tools()),
        named_tool=wanted.named_tool,
        answer_schema=schemas.answer,
        max_calls=wanted.max_calls,
        service_class=_SERVICE_CLASSES[wanted.service_tier or "auto"],
        hints=_hints(wanted, context, model),
        trace=trace,
        **({"on_end": images.close} if images else {}),
    )


def _conversation(wanted: ChatRequest, images: Mapping[str, Image]) -> Conversation:
    thinking, effort = reasoning_of(wanted)
    return Conversation(
        messages=wanted.messages,
        tools=wanted.tools or (),
        # A named function is asked for by the same note as `required`: the prompt has no other words for it.
        tool_choice="required" if wanted.named_tool else wanted.tool_choice or "auto",  # type: ignore[arg-type]  # checked
        thinking=thinking,
        effort=effort,
        response_format=wanted.response_format,
        template_options=wanted.chat_template_kwargs or {},
        images=images,
    )


def _hints(wanted: ChatRequest, context: RequestContext, model: ServedModel) -> EngineHints:
    turn = turn_of(wanted.messages)
    return EngineHints(
        tenant=context.tenant.name,
        model=model.name,
        last_user_text=turn.user_text,
        last_role=turn.last_role,
        last_text=turn.last_text,
        num_tool_results=turn.num_tool_results,
    )
