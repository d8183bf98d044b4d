"""The gateway without those of its controls that can be taken away: what they cost is the difference."""

from __future__ import annotations

from server.gateway import Gateway
from server.metrics.recorder import Recorder
from server.record import GenerationRecord


class _NoRecorder(Recorder):
    """Counts nothing."""

    def started(self, record: GenerationRecord) -> None:
        """Nothing."""

    def ended(self, record: GenerationRecord) -> None:
        """Nothing."""

    def refused(self, record: GenerationRecord) -> None:
        """Nothing."""


def switch_off(gateway: Gateway) -> None:
    """No metrics and no ledger rows. Keys, limits, budgets and the log are off by settings; the queue and the parser stay."""
    gateway.recorder = _NoRecorder(gateway.settings.models)

    def forget(record: GenerationRecord) -> None:
        """Nothing."""

    gateway.storage.ledger.ended = forget  # type: ignore[method-assign]
