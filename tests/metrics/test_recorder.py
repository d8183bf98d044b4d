"""What a scrape says of requests that have ended."""

from __future__ import annotations

from server.metrics.collectors import AdmissionFigures
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


def test_admission_and_ledger_are_as_they_are_when_a_scrape_asks() -> None:
    recorder, pending = Recorder(), 7
    recorder.watch_admission(
        lambda: AdmissionFigures(
            queued={"acme": 2},
            service={"acme": 1.5},
            budget_left={"acme": 0.25},
            ledger_rows={"written": 5, "lost": 1},
            num_pending_rows=pending,
            num_limits_failures=3,
        )
    )
    value, acme = recorder.registry.get_sample_value, {"tenant": "acme"}
    assert (2, 1.5, 0.25) == (
        value("k3gw_queued_requests", acme),
        value("k3gw_fair_service_tokens_total", acme),
        value("k3gw_budget_remaining_ratio", acme),
    )
    assert [5, 1] == [value("k3gw_ledger_rows_total", {"outcome": outcome}) for outcome in ("written", "lost")]
    assert (7, 3) == (value("k3gw_ledger_pending_rows"), value("k3gw_limits_store_failures_total"))
    pending = 0
    assert 0 == value("k3gw_ledger_pending_rows")
