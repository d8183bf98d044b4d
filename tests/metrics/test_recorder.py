"""What a scrape says of requests that have ended."""

from __future__ import annotations

from server.metrics.recorder import Recorder
from server.record import GenerationRecord

WHO = {"tenant": "acme", "model": "kimi-k3"}


def test_each_choice_counts_with_its_own_speed() -> None:
    recorder = Recorder()
    record = GenerationRecord("r", "acme", "kimi-k3", arrived_s=0.0)
    record.choice_speeds = [40.0, 60.0]
    recorder.started(record)
    recorder.ended(record)

    name = "k3gw_request_output_tokens_per_second"
    figures = {suffix: recorder.registry.get_sample_value(f"{name}_{suffix}", WHO) for suffix in ("count", "sum")}
    assert {"count": 2.0, "sum": 100.0} == figures
