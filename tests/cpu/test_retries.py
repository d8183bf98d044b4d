"""Calls that no grammar can make fit, sampled again on the real engine until they do."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest

from server.clock import ManualClock
from server.context import RequestContext, Tenant
from server.engine.base import Engine
from server.errors import InvalidToolCallError
from server.events import Event, ToolCallArguments, ToolCallEnd
from server.generation import Generator
from server.job import Job
from server.models import ServedModel
from server.prompts.base import Conversation
from server.record import GenerationRecord
from server.schemas.declared import DeclaredTools
from server.schemas.library import SchemaLibrary
from server.sections import ModelSettings
from tests.unlimited import make_generator

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

# The grammar holds the number to its range; that it must not be even, only the check can tell.
PARAMETERS = {
    "type": "object",
    "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 9999, "not": {"multipleOf": 2}}},
    "required": ["number"],
}
TOOL = {"type": "function", "function": {"name": "pick", "description": "Pick a number.", "parameters": PARAMETERS}}


class Sink:
    def __init__(self) -> None:
        self.records: list[GenerationRecord] = []

    def started(self, record: GenerationRecord) -> None: ...

    def ended(self, record: GenerationRecord) -> None:
        self.records.append(record)


async def answer(generator: Generator, seed: int, thinking: bool) -> list[Event] | None:
    """The events of one answer; None where no retry was left."""
    model = ServedModel("k3", "kimi_k3", ("reasoning",), ModelSettings(tool_call_policy="retry", tool_call_retries=3))
    messages = [{"role": "user", "content": "Pick any number you like."}]
    conversation = Conversation(messages, tools=[TOOL], tool_choice="required", thinking=thinking, effort="low")
    placed: list[tuple[str, dict[str, Any]]] = [("tools[0]", TOOL)]
    job = Job(
        RequestContext(f"retry-{seed}", Tenant("acme")), model, conversation, 0.0, sampling={"temperature": 1.0, "seed": seed},
        max_tokens=700, tools=DeclaredTools.of(placed, SchemaLibrary()), placed_tools=placed,
    )  # fmt: skip
    generation = await generator.prepare(job)
    events: list[Event] = []
    try:
        async with aclosing(generation.outputs()) as outputs:
            async for output in outputs:
                events += output.events
    except InvalidToolCallError:
        return None
    return events


@pytest.mark.parametrize("thinking", [False, True])
async def test_what_is_delivered_fits(vllm_engine: Engine, thinking: bool) -> None:
    sink = Sink()
    generator = make_generator(vllm_engine, ManualClock(), sink)
    answers = await asyncio.gather(*(answer(generator, seed, thinking) for seed in range(12)))

    numbers = []
    for events in answers:
        fragments: dict[int, str] = {}
        for event in events or ():
            if isinstance(event, ToolCallArguments):
                fragments[event.index] = fragments.get(event.index, "") + event.fragment
            elif isinstance(event, ToolCallEnd):
                numbers.append(json.loads(fragments[event.index])["number"])
    assert numbers
    assert [] == [number for number in numbers if number % 2 == 0]
    assert 0 < sum(record.tool_calls.get("retried", 0) for record in sink.records)
    assert 12 == len(sink.records)
    assert {} == {kind: count for record in sink.records for kind, count in record.recoveries.items()}
    assert 0 == vllm_engine.num_unfinished
