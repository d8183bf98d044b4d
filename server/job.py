"""What is to be generated, and what comes of it: the words between the routes and the pipeline.

Must not: know any API's wire shape; `Conversation` and `DeclaredTools` hold what a client sent, already checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.context import RequestContext
from server.engine.base import EngineHints, TokenLogprob
from server.events import Event
from server.models import ServedModel
from server.prompts.base import Conversation
from server.schemas.declared import DeclaredTools
from server.schemas.library import KnownSchema
from server.tracing.trace import RequestTrace


@dataclass(slots=True, frozen=True)
class Job:
    """What is to be generated.

    `sampling` has only what the client set, under the names of `Sampling`'s fields. Its `seed` is that of the first choice, the
    others' are the numbers after it; negative ones, of which the engine would take -1 for none, count from 2**63 down.
    `tools` are all that the conversation declares; `placed_tools` the same as they were sent, each with its path in the request;
    `named_tool`: the one that must be called; `max_calls`: how many calls the answer may have; `answer_schema`: what its
    text is to fit. `service_class`: among the tenant's own requests, lower ones go first. `hints`: for engines that choose
    replies by them, without what only the pipeline knows. `on_end`: called once nobody needs the conversation's images any more.
    `trace`: notes what is done for it, where the gateway traces.
    """

    context: RequestContext
    model: ServedModel
    conversation: Conversation
    arrived_s: float
    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    num_choices: int = 1
    tools: DeclaredTools = field(default_factory=lambda: DeclaredTools({}))
    placed_tools: Sequence[tuple[str, Mapping[str, Any]]] = ()
    named_tool: str | None = None
    answer_schema: KnownSchema | None = None
    max_calls: int | None = None
    service_class: int = 1
    hints: EngineHints = field(default_factory=EngineHints)
    on_end: Callable[[], None] = lambda: None
    trace: RequestTrace | None = None


@dataclass(slots=True)
class Output:
    """What one choice said since its last output. `logprobs` are those of the tokens behind the events, when asked for."""

    choice: int
    events: list[Event]
    logprobs: list[TokenLogprob] | None = None


@dataclass(slots=True, frozen=True)
class Direct:
    """A client's own way to have an output in the very turn of the loop in which it was made, past whoever reads outputs.

    `is_ready`: whether the client has all outputs before, and `send` would send at once.
    """

    is_ready: Callable[[], bool]
    send: Callable[[Output], None]
