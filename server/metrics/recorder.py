"""Records of requests -> metrics; the engine's own counts are read when a scrape asks.

Role: step 9 of a request. Costs nothing per token: a request is counted once, when it has ended. The registry belongs to
this object, so that two gateways in a process, or a test, have their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from server.engine.base import Engine
from server.metrics import catalog
from server.metrics.collectors import AdmissionCollector, AdmissionFigures, EngineCollector
from server.record import GenerationRecord

VLLM_PREFIX = "vllm:"


class Recorder:
    """All metrics of one gateway."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._engine = EngineCollector()
        self.registry.register(self._engine)
        self._metrics: dict[str, Any] = {}
        for metric in catalog.RECORDED:
            kind = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}[metric.kind]
            options = {"buckets": metric.buckets} if metric.buckets else {}
            self._metrics[metric.name] = kind(
                catalog.PREFIX + metric.name, metric.meaning, metric.labels, registry=self.registry, **options
            )

    def watch(self, engine: Engine) -> None:
        """Publish this engine's counts from now on."""
        self._engine.engine = engine

    def watch_admission(self, figures: Callable[[], AdmissionFigures]) -> None:
        """Publish what `figures` returns at each scrape."""
        self.registry.register(AdmissionCollector(figures))

    def started(self, record: GenerationRecord) -> None:
        """A generation begins."""
        self._of(catalog.INFLIGHT, record.tenant, record.model).inc()

    def ended(self, record: GenerationRecord) -> None:
        """A generation has ended, however; called once."""
        who = (record.tenant, record.model)
        self._of(catalog.INFLIGHT, *who).dec()
        self._of(catalog.REQUESTS, *who, record.api, record.outcome).inc()
        for kind, count in (
            ("input", record.num_input_tokens),
            ("cached_input", record.num_cached_tokens),
            ("output", record.num_output_tokens),
            ("reasoning", record.num_reasoning_tokens),
            ("discarded", record.num_discarded_tokens),
        ):
            self._of(catalog.TOKENS, *who, kind).inc(count)
        for outcome, count in record.tool_calls.items():
            self._of(catalog.TOOL_CALLS, *who, outcome).inc(count)
        for outcome, count in record.json_answers.items():
            self._of(catalog.JSON_ANSWERS, *who, outcome).inc(count)
        for kind, count in record.recoveries.items():
            self._of(catalog.RECOVERIES, kind).inc(count)
        if record.was_dispatched:
            self._of(catalog.IMAGE_TOKENS).inc(record.num_image_tokens)
        if record.rejected_by is not None:
            self._of(catalog.REJECTED, record.tenant, record.rejected_by).inc()
        if record.queue_s is not None:
            self._of(catalog.QUEUE_SECONDS, *who).observe(record.queue_s)
        if record.ended_s is not None:
            self._of(catalog.REQUEST_SECONDS, *who).observe(record.ended_s - record.arrived_s)
        if record.first_token_s is not None:
            self._of(catalog.TTFT_SECONDS, *who).observe(record.first_token_s - record.arrived_s)
        for speed in record.choice_speeds:
            self._of(catalog.OUTPUT_SPEED, *who).observe(speed)

    def refused(self, record: GenerationRecord) -> None:
        """A request has ended without a generation; what is not known of it is empty."""
        self._of(catalog.REQUESTS, record.tenant, record.model, record.api, record.outcome).inc()
        if record.rejected_by is not None:
            self._of(catalog.REJECTED, record.tenant, record.rejected_by).inc()

    def image(self, outcome: str) -> None:
        """An image was loaded, or not."""
        self._of(catalog.IMAGES, outcome).inc()

    def exposition(self) -> tuple[bytes, str]:
        """The text of a scrape and its content type; vLLM's own metrics, kept in the process's default registry, come with it."""
        return generate_latest(self.registry) + generate_latest(_VllmOnly()), CONTENT_TYPE_LATEST

    def _of(self, metric: catalog.Metric, *labels: str) -> Any:
        found = self._metrics[metric.name]
        return found.labels(*labels) if labels else found


class _VllmOnly(CollectorRegistry):
    """The `vllm:` families of the process's default registry."""

    def collect(self) -> Iterator[Metric]:
        return (family for family in REGISTRY.collect() if family.name.startswith(VLLM_PREFIX))
