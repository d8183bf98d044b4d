"""vLLM's own metrics, which it keeps in the client library's default registry of the process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest

VLLM_PREFIX: Final = "vllm:"


class _One(CollectorRegistry):
    """One family, to be written by the library."""

    def __init__(self, family: Metric) -> None:
        super().__init__()
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def vllm_pieces(registry: CollectorRegistry = REGISTRY) -> Iterator[str]:
    """The text of the `vllm:` families, one by one, without the times of their creation, which only double the series."""
    for family in registry.collect():
        if not family.name.startswith(VLLM_PREFIX):
            continue
        told = Metric(family.name, family.documentation, family.type, family.unit)
        told.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
        yield generate_latest(_One(told)).decode()
