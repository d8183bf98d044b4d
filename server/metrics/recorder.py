"""Records of requests -> metrics; the engine's and admission's own counts are read when a scrape asks.

Role: step 9 of a request. Costs nothing per token: a request is counted once, when it has ended, from the plain counts of its
record. A scrape is written in pieces, and others have their turns between them.
Invariant: no label's value is a client's: tenants and models are configured, and what is in no closed set counts as `other`. The
numbers belong to this object, so that two gateways in a process, or a test, have their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from itertools import chain, product
from typing import Final

from server.engine.base import Engine
from server.metrics import catalog
from server.metrics.catalog import Label, Limits, Metric
from server.metrics.collectors import AdmissionFigures, admission_pieces, engine_pieces
from server.metrics.families import Histogram, Key, Numbers
from server.metrics.names import TenantNames
from server.metrics.vllm_families import vllm_pieces
from server.record import GenerationRecord

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PART_CHARS: Final = 64 * 1024
_SMALL_CHARS: Final = 1000
"""What has less is not worth a turn of the event loop."""


class Recorder:
    """All metrics of one gateway. `models`: the configured names. `max_tenants`: so many have series of their own."""

    def __init__(self, models: Iterable[str] = (), max_tenants: int = catalog.DEFAULT_MAX_TENANTS) -> None:
        self._models = frozenset(models)
        self.names = TenantNames(max_tenants)
        self.limits = Limits(max_tenants, len(self._models))
        self.numbers = {metric: Numbers(metric) for metric in catalog.RECORDED if metric.kind != "histogram"}
        self.histograms = {metric: Histogram(metric) for metric in catalog.RECORDED if metric.kind == "histogram"}
        self._closed = {label: frozenset(label.values) for metric in catalog.RECORDED for label in metric.by if label.values}
        self._engine: Engine | None = None
        self._figures: Callable[[], AdmissionFigures] = AdmissionFigures
        for metric, numbers in self.numbers.items():
            # A counter that appears with its first count has no increase in it.
            if metric.by and all(label.values and label.values != catalog.FIXED for label in metric.by):
                for key in product(*(label.values for label in metric.by)):
                    numbers.put(key, 0)

    def describe(self, version: str, engine: str, profile: str) -> None:
        """Say what runs here."""
        self.numbers[catalog.BUILD_INFO].put((version, engine, profile), 1)

    def watch(self, engine: Engine) -> None:
        """Publish this engine's counts from now on."""
        self._engine = engine

    def watch_admission(self, figures: Callable[[], AdmissionFigures]) -> None:
        """Publish what `figures` returns at each scrape."""
        self._figures = figures

    def started(self, record: GenerationRecord) -> None:
        """A generation begins."""
        self.numbers[catalog.INFLIGHT].add(self._who(record))

    def ended(self, record: GenerationRecord) -> None:
        """A generation has ended, however; called once."""
        who, add = self._who(record), self._add
        self.numbers[catalog.INFLIGHT].add(who, -1)
        self._count_request(record, who)
        for kind, count in (
            ("input", record.num_input_tokens),
            ("cached_input", record.num_cached_tokens),
            ("output", record.num_output_tokens),
            ("reasoning", record.num_reasoning_tokens),
            ("discarded", record.num_discarded_tokens),
        ):
            self.numbers[catalog.TOKENS].add((*who, kind), count)
        for outcome, count in record.tool_calls.items():
            add(catalog.TOOL_CALLS, who, catalog.CALL, outcome, count)
        for outcome, count in record.json_answers.items():
            add(catalog.JSON_ANSWERS, who, catalog.ANSWER, outcome, count)
        for kind, count in record.recoveries.items():
            add(catalog.RECOVERIES, (), catalog.RECOVERY, kind, count)
        if record.num_draft_tokens:
            self.numbers[catalog.DRAFT_TOKENS].add(who, record.num_draft_tokens)
            self.numbers[catalog.ACCEPTED_TOKENS].add(who, record.num_accepted_tokens)
        if record.was_dispatched:
            self.numbers[catalog.IMAGE_TOKENS].add((), record.num_image_tokens)
        self._observe_times(record, who)

    def refused(self, record: GenerationRecord) -> None:
        """A request has ended without a generation; what is not known of it is empty."""
        self._count_request(record, self._who(record))

    def image(self, outcome: str) -> None:
        """An image was loaded, or not."""
        self._add(catalog.IMAGES, (), catalog.IMAGE, outcome, 1)

    def lagged(self, seconds: float) -> None:
        """A timer rang so late."""
        self.histograms[catalog.LOOP_LAG].observe((), seconds)

    def pieces(self) -> Iterator[str]:
        """The text of a scrape, each piece written as it is asked for, a fraction of a millisecond each."""
        yield from self._counted()
        yield from engine_pieces(self._engine)
        yield from vllm_pieces()

    def part(self) -> AsyncGenerator[bytes, None]:
        """As `exposition`, for a whole of several processes: without the engine's figures, which are made of all its counts."""
        return in_parts(chain(self._counted(), vllm_pieces()))

    def exposition(self) -> AsyncGenerator[bytes, None]:
        """The text of a scrape, vLLM's own metrics with it, in parts that are worth being sent."""
        return in_parts(self.pieces())

    def _counted(self) -> Iterator[str]:
        yield from chain.from_iterable(numbers.pieces() for numbers in self.numbers.values())
        yield from chain.from_iterable(histogram.pieces() for histogram in self.histograms.values())
        yield from admission_pieces(self._figures(), self.names)

    def sums(self, metric: Metric, by: str, **labels: str) -> dict[str, float]:
        """What a counter or a gauge says, added up by one label over the series that have these `labels`, as a scrape would."""
        if not labels and by == metric.labels[-1]:
            return dict(self.numbers[metric].by_last)
        at = metric.labels.index(by)
        wanted = [(metric.labels.index(name), value) for name, value in labels.items()]
        sums: dict[str, float] = {}
        for key, value in self.numbers[metric].values.items():
            if not wanted or all(key[index] == label for index, label in wanted):
                sums[key[at]] = sums.get(key[at], 0) + value
        return sums

    def distribution(self, metric: Metric) -> tuple[list[int], float]:
        """What a histogram says of all its series: how many are in each bucket alone, and the sum of values."""
        whole = self.histograms[metric].whole
        return list(whole.counts), whole.sum

    def _who(self, record: GenerationRecord) -> Key:
        return self.names.label(record.tenant), record.model if record.model in self._models else ""

    def _count_request(self, record: GenerationRecord, who: Key) -> None:
        api, outcome = self._value(catalog.API, record.api), self._value(catalog.OUTCOME, record.outcome)
        self.numbers[catalog.REQUESTS].add((*who, api, outcome))
        if record.rejected_by is not None:
            self._add(catalog.REJECTED, who[:1], catalog.REASON, record.rejected_by, 1)

    def _observe_times(self, record: GenerationRecord, who: Key) -> None:
        histograms = self.histograms
        if record.queue_s is not None:
            histograms[catalog.QUEUE_SECONDS].observe(who, record.queue_s)
        if record.ended_s is not None:
            histograms[catalog.REQUEST_SECONDS].observe(who, record.ended_s - record.arrived_s)
        if record.first_token_s is not None:
            histograms[catalog.TTFT_SECONDS].observe(who, record.first_token_s - record.arrived_s)
        if record.overhead_s is not None:
            histograms[catalog.OVERHEAD].observe(who[1:], record.overhead_s)
        if record.token_gaps:
            histograms[catalog.INTER_TOKEN].observe_many(who, record.token_gaps, record.token_gaps_s)
        for speed in record.choice_speeds:
            histograms[catalog.OUTPUT_SPEED].observe(who, speed)

    def _add(self, metric: Metric, key: Key, label: Label, value: str, count: int) -> None:
        self.numbers[metric].add((*key, self._value(label, value)), count)

    def _value(self, label: Label, value: str) -> str:
        return value if value in self._closed[label] else catalog.OTHER


async def in_parts(pieces: Iterator[str]) -> AsyncGenerator[bytes, None]:
    """The text of `pieces`, in parts that are worth being sent; others have their turns between them."""
    part: list[str] = []
    num_chars = 0
    for piece in pieces:
        part.append(piece)
        num_chars += len(piece)
        if num_chars >= _PART_CHARS:
            yield "".join(part).encode()
            part.clear()
            num_chars = 0
        if len(piece) > _SMALL_CHARS or not piece:  # nothing at all is said for much that was looked at
            await asyncio.sleep(0)
    yield "".join(part).encode()
