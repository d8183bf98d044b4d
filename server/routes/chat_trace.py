"""What a trace says of a chat completion request, in the names of the conventions.

Role: beside `chat_job.py`. Only what comes from small sets or is a number: a model's name is one of ours or its alias, and stop
strings, tools and messages are the client's own words.
Source: OpenTelemetry's semantic conventions for generative AI, inference spans.
"""

from __future__ import annotations

from server.protocol.chat import ChatRequest
from server.tracing.trace import RequestTrace

_FIELDS = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "seed": "seed", "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty", "output_cap": "max_tokens",
}  # fmt: skip


def describe(trace: RequestTrace, wanted: ChatRequest) -> None:
    """Note what `wanted`, checked, asks for."""
    attributes = trace.attributes
    attributes["gen_ai.request.model"] = wanted.model
    for name, attribute in _FIELDS.items():
        if (value := getattr(wanted, name)) is not None:
            attributes[f"gen_ai.request.{attribute}"] = value
    if wanted.stream:
        attributes["gen_ai.request.stream"] = True
    if wanted.n not in (None, 1):
        attributes["gen_ai.request.choice.count"] = wanted.n or 1
    if wanted.response_format is not None:
        attributes["gen_ai.output.type"] = "text" if wanted.response_format.get("type") == "text" else "json"
    if trace.content is not None and trace.is_sampled:
        trace.content.asked(wanted.messages)
