"""From a request that has ended to its spans.

Role: step 9 of a request, where it is traced. Invariant: the spans of a request are one tree, all of them ended, and none ends
after the request's own, whatever has become of it; they say nothing of what was asked and answered, unless that was to be kept.
Source: OpenTelemetry's semantic conventions: HTTP server spans, generative AI inference (names of attributes, what is an error).
"""

from __future__ import annotations

import http
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from server.errors import GatewayError
from server.record import GenerationRecord
from server.tracing.trace import AttributeValue, RequestTrace, Span, error_type, is_error, new_id

OPERATION: Final = "chat"
PROVIDER: Final = "k3_gateway"


@dataclass(slots=True, frozen=True)
class EndedSpan:
    """One span, as it is exported. `parent_id`: 0 for none; of the client's where `is_parent_remote`. Times: since 1970.

    `is_error`: it is our fault, or the engine's. `events`: name and time.
    """

    name: str
    kind: Literal["server", "client", "internal"]
    span_id: int
    parent_id: int
    start_ns: int
    end_ns: int
    attributes: dict[str, AttributeValue]
    is_error: bool = False
    is_parent_remote: bool = False
    events: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True, frozen=True)
class Ending:
    """How a request ended. `status`: of the response, 0 where there was none; `state`: what the application's layers noted."""

    scope: Any
    status: int
    ended_s: float
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> GatewayError | None:
        """What it ended with, where that was an error."""
        error: GatewayError | None = self.state.get("error")
        return error

    @property
    def record(self) -> GenerationRecord | None:
        """Of its generation, where it came to one."""
        record: GenerationRecord | None = self.state.get("record")
        return record


def spans_of(trace: RequestTrace, ending: Ending) -> list[EndedSpan]:
    """All spans of a request: its own first, then its parts in the order in which they began."""
    parts = list(trace.spans)
    if trace.opened_s is not None and 0 < ending.status < http.HTTPStatus.BAD_REQUEST:
        parts.append(_stream(trace, trace.opened_s, ending))
    return [_own(trace, ending), *(_part(trace, span, ending) for span in parts)]


def _stream(trace: RequestTrace, opened_s: float, ending: Ending) -> Span:
    """From the first byte of an answer to its last. Cut where the answer was."""
    span = Span("stream", new_id(64), opened_s, ending.ended_s, was_cut=_outcome(ending) == "cancelled")
    if ending.error is not None:
        span.fail(ending.error)
    return span


def _own(trace: RequestTrace, ending: Ending) -> EndedSpan:
    parent, error = trace.parent, ending.error
    model = trace.attributes.get("gen_ai.request.model") or ending.state.get("model")
    attributes = {**trace.attributes, **_of_request(ending)}
    if ending.record is not None:
        attributes |= _of_record(ending.record)
        if ending.record.first_token_s is not None and trace.attributes.get("gen_ai.request.stream"):
            attributes["gen_ai.response.time_to_first_chunk"] = ending.record.first_token_s - ending.record.arrived_s
    if error is not None:
        attributes["error.type"] = error_type(error)
    if trace.content is not None:
        attributes |= trace.content.attributes()
    return EndedSpan(
        name=f"{OPERATION} {model}" if model else OPERATION,
        kind="server",
        span_id=trace.span_id,
        parent_id=parent.span_id if parent else 0,
        start_ns=trace.started_ns,
        end_ns=_ns(trace, ending.ended_s),
        attributes=attributes,
        is_error=error is not None and is_error(error),
        is_parent_remote=parent is not None,
    )


def _part(trace: RequestTrace, span: Span, ending: Ending) -> EndedSpan:
    if span.ended_s is None:
        span.was_cut = True
    if span.was_cut and ending.error is not None:  # it took too long, or another choice failed
        span.fail(ending.error)
    attributes = dict(span.attributes)
    if span.error_type is not None:
        attributes["error.type"] = span.error_type
    elif span.was_cut and _outcome(ending) != "finished":  # a stop string ends the engine's work, too
        attributes["k3gw.cancelled"] = True
    start_ns, end_ns = _ns(trace, span.started_s), _ns(trace, ending.ended_s if span.ended_s is None else span.ended_s)
    return EndedSpan(
        name=span.name,
        kind="client" if span.is_call else "internal",
        span_id=span.span_id,
        parent_id=trace.span_id,
        start_ns=start_ns,
        end_ns=min(end_ns, _ns(trace, ending.ended_s)),
        attributes=attributes,
        is_error=span.is_error,
        events=() if span.first_token_s is None else (("first_token", _ns(trace, span.first_token_s)),),
    )


def _of_request(ending: Ending) -> dict[str, AttributeValue]:
    """What is known of every request, whatever it came to."""
    state, scope = ending.state, ending.scope
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": OPERATION,
        "gen_ai.provider.name": PROVIDER,
        "http.request.method": scope["method"],
        "http.route": scope["path"],
        "url.scheme": scope.get("scheme", "http"),
        "k3gw.request_id": state["request_id"],
        "k3gw.outcome": _outcome(ending),
    }
    if ending.status:
        attributes["http.response.status_code"] = ending.status
    if server := scope.get("server"):
        attributes["server.address"] = str(server[0])
        if server[1] is not None:
            attributes["server.port"] = server[1]
    if "tenant" in state:
        attributes["k3gw.tenant"] = state["tenant"].name
    if state.get("key_id"):
        attributes["k3gw.key_id"] = state["key_id"]
    if state.get("model"):
        attributes["gen_ai.response.model"] = state["model"]
    return attributes


def _of_record(record: GenerationRecord) -> dict[str, AttributeValue]:
    """What became of a generation, in the engine's own counts."""
    attributes: dict[str, AttributeValue] = {
        "gen_ai.usage.input_tokens": record.num_input_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.num_cached_tokens,
        "gen_ai.usage.output_tokens": record.num_output_tokens,
        "gen_ai.usage.reasoning.output_tokens": record.num_reasoning_tokens,
        "k3gw.discarded_tokens": record.num_discarded_tokens,
        "k3gw.tool_call_retries": record.tool_calls.get("retried", 0),
        "k3gw.cost_nano_usd": record.cost_nano_usd,
    }
    if record.finish_reasons:
        attributes["gen_ai.response.finish_reasons"] = [record.finish_reasons[i] for i in sorted(record.finish_reasons)]
    if record.queue_s is not None:
        attributes["k3gw.queue_seconds"] = record.queue_s
    if record.first_token_s is not None:
        attributes["k3gw.ttft_seconds"] = record.first_token_s - record.arrived_s
    if record.num_images:
        attributes["k3gw.images"] = record.num_images
        attributes["gen_ai.usage.image.input_tokens"] = record.num_image_tokens
    if record.rejected_by is not None:
        attributes["k3gw.rejected_by"] = record.rejected_by
    return attributes


def _outcome(ending: Ending) -> str:
    if ending.record is not None:
        return ending.record.outcome
    if ending.error is not None:
        return ending.error.outcome
    return str(ending.state.get("log", {}).get("outcome", "finished"))


def _ns(trace: RequestTrace, moment_s: float) -> int:
    return trace.started_ns + round(1e9 * max(0.0, moment_s - trace.started_s))
