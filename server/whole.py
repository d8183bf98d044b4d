"""What all workers of a gateway say together, where it has several: its metrics and its engine.

Role: between the routes and the workers, each of which is asked for its part. Invariant: it is the same, whichever
worker is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import msgspec

from server.engine.base import EngineStats, ModelFacts
from server.engine.together import together
from server.gateway import Gateway
from server.metrics.collectors import engine_pieces
from server.metrics.merge import MergedScrape
from server.metrics.recorder import in_parts
from server.others import Others

METRICS: Final = "metrics"


class EnginePart(msgspec.Struct, frozen=True):
    """What one worker knows of its engine. `is_shared`: the others' engine is the same one. `num_unfinished`: its requests."""

    is_dead: bool
    is_shared: bool
    seats: int
    context_length: int
    num_unfinished: int
    stats: EngineStats


_PART: Final = msgspec.msgpack.Decoder(EnginePart | None)


@dataclass(slots=True, frozen=True)
class WholeEngine:
    """The engine of all workers, or all their engines, to be looked at."""

    stats: EngineStats
    facts: ModelFacts
    dead: bool


def engine_part(gateway: Gateway) -> bytes:
    """This worker's part, encoded; of None where it has no engine yet."""
    engine = gateway.engine
    if engine is None:
        return msgspec.msgpack.encode(None)
    facts = engine.facts
    part = EnginePart(
        is_dead=engine.dead,
        is_shared=gateway.seats_elsewhere is not None,
        seats=facts.seats,
        context_length=facts.context_length,
        num_unfinished=engine.num_unfinished,
        stats=engine.stats,
    )
    return msgspec.msgpack.encode(part)


def decoded_part(encoded: bytes) -> EnginePart | None:
    """What `engine_part` has encoded."""
    return _PART.decode(encoded)


def engine_of(encoded: Sequence[bytes]) -> WholeEngine | None:
    """The engine that these parts are of; None while a worker has none."""
    parts = [part for part in map(_PART.decode, encoded) if part is not None]
    if len(parts) < len(encoded):
        return None
    stats = together([part.stats for part in parts], is_idle=not any(part.num_unfinished for part in parts))
    seats = max(part.seats for part in parts) if parts[0].is_shared else sum(part.seats for part in parts)
    facts = ModelFacts(min(part.context_length for part in parts), seats, ())
    return WholeEngine(stats, facts, dead=any(part.is_dead for part in parts))


async def metrics_part(gateway: Gateway) -> AsyncIterator[bytes]:
    """This worker's part of a scrape: its engine's, then text."""
    yield engine_part(gateway)
    async for text in gateway.recorder.part():
        yield text


async def exposition(others: Others) -> AsyncGenerator[bytes, None]:
    """The text of a scrape of all workers. Raises `OverloadedError` where one does not answer."""
    answers = await others.ask_all(METRICS)
    scrape = MergedScrape()
    for part, *texts in answers:
        known = _PART.decode(part)
        steps = {} if known is None else known.stats.steps
        scrape.begin({str(number): step.at_s for number, step in steps.items()})
        for text in texts:
            scrape.add(text.decode())
            await asyncio.sleep(0)
    engine = engine_of([part for part, *_ in answers])
    return in_parts(_pieces(scrape, engine))


def _pieces(scrape: MergedScrape, engine: WholeEngine | None) -> Iterator[str]:
    return chain(scrape.pieces(), engine_pieces(engine))
