"""What the choices of a generation are given to work with.

Role: between `generation.py`, which makes it, and `choice.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from server.admission.limits import Usage
from server.admission.place import Place
from server.admission.ticket import Ticket
from server.clock import Clock
from server.context import Tenant
from server.engine.base import Engine, Sampling
from server.grammar.base import Grammar, Shape
from server.job import Job
from server.parsers.factory import ParserFactory
from server.parsers.stop import StopStrings
from server.prompts.base import Prompt


@dataclass(slots=True, frozen=True)
class Plan:
    """What all choices of a generation share."""

    job: Job
    prompt: Prompt
    sampling: Sampling
    shape: Shape
    grammar: Grammar | None
    stop: StopStrings | None


class Pipeline(Protocol):
    """What a choice works with; `server.generation.Generator` is that."""

    engine: Engine
    clock: Clock
    parsers: dict[str, ParserFactory]

    def cache_salt(self, tenant: Tenant) -> str: ...
    def engine_id(self, job: Job) -> str: ...
    async def grammar_of(self, job: Job, shape: Shape) -> Grammar | None: ...


@dataclass(slots=True, frozen=True)
class Allowance:
    """What a generation was given: the tenant's `ticket`, and a place in the queue for each choice."""

    ticket: Ticket
    places: Sequence[Place]

    def end(self, usage: Usage) -> None:
        """Give back what was not used. May be called while choices still end."""
        for place in self.places:
            place.leave()
        self.ticket.settle(usage)
