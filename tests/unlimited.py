"""Admission that refuses nobody, for tests of what comes after it."""

from __future__ import annotations

from collections.abc import Iterable

from server.admission.admission import Admission
from server.admission.fair_queue import FairQueue
from server.admission.memory import MemoryStore
from server.clock import Clock
from server.engine.base import Engine
from server.generation import Generator, RecordSink
from server.sections import AdmissionSettings
from server.tenancy.isolation import CacheSalts


def make_generator(
    engine: Engine, clock: Clock, sink: RecordSink, formats: Iterable[str] = ("kimi_k3",), *, known_texts_bytes: int = 0
) -> Generator:
    """A generator over `engine`, with all its seats."""
    admission = Admission(MemoryStore(clock), clock)
    queue = FairQueue(engine.facts.seats, AdmissionSettings(reserved_seats=0), clock, engine.stats)
    salts = CacheSalts(b"secret of tests")
    return Generator(engine, clock, sink, salts.of, formats, admission, queue, known_texts_bytes=known_texts_bytes)
