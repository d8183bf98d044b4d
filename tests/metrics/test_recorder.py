"""What a scrape says of requests, by its text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.clock import ManualClock
from server.metrics import catalog
from server.metrics.collectors import AdmissionFigures
from server.metrics.recorder import Recorder
from server.pace import ClientPace, Pace
from server.record import GenerationRecord

WHO = {"tenant": "acme", "model": "kimi-k3"}


class Scrape:
    """One scrape, read by the client library's own parser."""

    def __init__(self, recorder: Recorder) -> None:
        self.text = "".join(recorder.pieces())
        self.families = {family.name: family for family in text_string_to_metric_families(self.text)}
        samples = [sample for family in self.families.values() for sample in family.samples]
        self.values = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
        assert len(samples) == len(self.values), "a series is told twice"

    def value(self, name: str, labels: Mapping[str, str] | None = None) -> float | None:
        return self.values.get((catalog.PREFIX + name, frozenset((labels or {}).items())))


def record(tenant: str = "acme", model: str = "kimi-k3", **fields: Any) -> GenerationRecord:
    return GenerationRecord("r", tenant, model, arrived_s=0.0, **fields)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(["kimi-k3"])


def count(recorder: Recorder, ended: GenerationRecord) -> GenerationRecord:
    recorder.started(ended)
    recorder.ended(ended)
    return ended


def test_each_choice_counts_with_its_own_speed(recorder: Recorder) -> None:
    count(recorder, record(choice_speeds=[40.0, 60.0]))

    name = "request_output_tokens_per_second"
    scrape = Scrape(recorder)
    assert (2, 100) == (scrape.value(f"{name}_count", WHO), scrape.value(f"{name}_sum", WHO))
    buckets = [scrape.value(f"{name}_bucket", {**WHO, "le": le}) for le in ("20.0", "40.0", "60.0", "600.0", "+Inf")]
    assert [0, 1, 2, 2, 2] == buckets, "a bound belongs to its bucket"


def test_tokens_are_counted_by_kind_on_every_ending(recorder: Recorder) -> None:
    counts = {"num_input_tokens": 7, "num_cached_tokens": 5, "num_output_tokens": 3, "num_reasoning_tokens": 2}
    for outcome in ("finished", "cancelled"):
        count(recorder, record(outcome=outcome, **counts))

    scrape = Scrape(recorder)
    kinds = ("input", "cached_input", "output", "reasoning", "discarded")
    assert [14, 10, 6, 4, 0] == [scrape.value("tokens_total", {**WHO, "kind": kind}) for kind in kinds]
    for outcome in ("finished", "cancelled"):
        assert 1 == scrape.value("requests_total", {**WHO, "api": "chat", "outcome": outcome})
    assert 0 == scrape.value("inflight_requests", WHO)


def test_what_is_under_way_is_seen(recorder: Recorder) -> None:
    ended = record()
    recorder.started(ended)
    assert 1 == Scrape(recorder).value("inflight_requests", WHO)
    recorder.ended(ended)
    assert 0 == Scrape(recorder).value("inflight_requests", WHO)


def test_gaps_count_each_token_and_add_up_to_the_time_between(recorder: Recorder) -> None:
    clock = ManualClock(0.0)
    pace = Pace(clock.monotonic_s)
    pace.go_on()
    pace.ask()
    for seconds, num_tokens in ((1.0, 1), (0.009, 1), (0.00225, 3), (2.0, 0)):
        clock.advance(seconds)
        pace.came(num_tokens)
    pace.go_on()
    clock.advance(3)  # with something else
    pace.ask()
    clock.advance(1)
    pace.came(2)
    ended = record()
    ended.count_pace(pace)
    count(recorder, ended)

    scrape = Scrape(recorder)
    buckets = [scrape.value("inter_token_seconds_bucket", {**WHO, "le": le}) for le in ("0.001", "0.005", "0.01", "+Inf")]
    assert [3, 3, 4, 4] == buckets, "three tokens of 0.75 ms, one of 9 ms; first outputs and the empty one have none"
    assert pytest.approx(0.01125) == scrape.value("inter_token_seconds_sum", WHO)
    assert pytest.approx(4 / 0.01125) == scrape.value("request_output_tokens_per_second_sum", WHO)


def test_overhead_is_what_is_left_without_waits(recorder: Recorder) -> None:
    clock = ManualClock(0.0)
    pace = Pace(clock.monotonic_s)
    clock.advance(1)  # for a seat
    pace.go_on()
    clock.advance(0.5)
    pace.ask()
    client = ClientPace(received_s=0.25)
    ended = record(ended_s=5.0, admitted_s=2.0, client=client)
    clock.advance(1.5)
    pace.came(1)
    client.unread_s += 0.25  # while the engine goes on
    clock.advance(0.5)
    pace.came(1)
    ended.engine_done(pace)
    clock.advance(0.5)
    client.unread_s += 0.25
    ended.count_pace(pace)
    count(recorder, ended)
    count(recorder, record(ended_s=5.0))  # never came to the engine

    scrape = Scrape(recorder)
    assert (1, 1.5) == (
        scrape.value("overhead_seconds_count", {"model": "kimi-k3"}),
        scrape.value("overhead_seconds_sum", {"model": "kimi-k3"}),
    )


def test_drafts_are_told_by_tenant_where_there_are_any(recorder: Recorder) -> None:
    count(recorder, record("other-one"))
    count(recorder, record(num_draft_tokens=14, num_accepted_tokens=6))

    scrape = Scrape(recorder)
    assert (14, 6) == (scrape.value("spec_draft_tokens_total", WHO), scrape.value("spec_accepted_tokens_total", WHO))
    assert scrape.value("spec_draft_tokens_total", {**WHO, "tenant": "other-one"}) is None


def test_what_is_in_no_closed_set_counts_as_other(recorder: Recorder) -> None:
    count(recorder, record(outcome="made_up", api="made_up", rejected_by="made_up", recoveries={"made_up": 2}))

    scrape = Scrape(recorder)
    assert 1 == scrape.value("requests_total", {**WHO, "api": "other", "outcome": "other"})
    assert 1 == scrape.value("rejected_total", {"tenant": "acme", "reason": "other"})
    assert 2 == scrape.value("parser_recoveries_total", {"kind": "other"})
    assert "made_up" not in scrape.text


def test_admission_and_ledger_are_as_they_are_when_a_scrape_asks(recorder: Recorder) -> None:
    pending = 7
    recorder.watch_admission(
        lambda: AdmissionFigures(
            queued={"acme": 2},
            service={"acme": 1.5},
            weights={"acme": 4.0},
            budget_left=[("acme", 0.25)],
            ledger_rows={"written": 5, "lost": 1},
            num_pending_rows=pending,
            limits_up=False,
            num_limits_failures=3,
            num_held_bytes=17,
        )
    )
    scrape, acme = Scrape(recorder), {"tenant": "acme"}
    by_tenant = ("queued_requests", "fair_service_tokens_total", "tenant_weight", "budget_remaining_ratio")
    assert [2, 1.5, 4, 0.25] == [scrape.value(name, acme) for name in by_tenant]
    assert [5, 1] == [scrape.value("ledger_rows_total", {"outcome": outcome}) for outcome in ("written", "lost")]
    single = ("ledger_pending_rows", "limits_store_up", "limits_store_failures_total", "held_bytes")
    assert [7, 0, 3, 17] == [scrape.value(name) for name in single]
    pending = 0
    assert 0 == Scrape(recorder).value("ledger_pending_rows")


def test_labels_are_escaped(recorder: Recorder) -> None:
    name = 'a"b\\c\nd%e\0{}'
    count(recorder, record(name, ended_s=1.0))

    scrape = Scrape(recorder)
    assert 1 == scrape.value("requests_total", {"tenant": name, "model": "kimi-k3", "api": "chat", "outcome": "cancelled"})
    assert 1 == scrape.value("request_seconds_count", {"tenant": name, "model": "kimi-k3"})


def test_counters_are_there_before_they_count(recorder: Recorder) -> None:
    scrape = Scrape(recorder)
    assert 0 == scrape.value("images_total", {"outcome": "failed"})
    assert 0 == scrape.value("parser_recoveries_total", {"kind": "invalid_json"})
    assert 0 == scrape.value("image_tokens_total")
    assert 0 == scrape.value("event_loop_lag_seconds_count")


def test_what_runs_here_is_told(recorder: Recorder) -> None:
    recorder.describe("1.2.3", "vllm", "kimi-k3-b300")
    assert 1 == Scrape(recorder).value("build_info", {"version": "1.2.3", "engine": "vllm", "profile": "kimi-k3-b300"})


def test_nothing_is_told_of_when_series_began(recorder: Recorder) -> None:
    count(recorder, record(ended_s=1.0))
    assert "_created" not in Scrape(recorder).text


def test_what_was_told_before_goes_on(recorder: Recorder) -> None:
    for number in (1, 2):
        count(recorder, record(ended_s=1.0, token_gaps=[1] * 12, token_gaps_s=0.5))
        scrape = Scrape(recorder)
        assert number == scrape.value("request_seconds_count", WHO)
        assert (12 * number, 0.5 * number) == tuple(scrape.value(f"inter_token_seconds_{part}", WHO) for part in ("count", "sum"))


@pytest.mark.parametrize("is_model", [False, True])
def test_sums_and_distributions_are_those_of_the_scrape(recorder: Recorder, is_model: bool) -> None:
    for tenant, tokens in (("a", 3), ("b", 4), ("a", 5)):
        count(recorder, record(tenant, num_input_tokens=tokens, num_output_tokens=1, ended_s=float(tokens)))

    expected = {"kimi-k3": 12} if is_model else {"a": 8, "b": 4}
    assert expected == recorder.sums(catalog.TOKENS, "model" if is_model else "tenant", kind="input")
    counts, total = recorder.distribution(catalog.REQUEST_SECONDS)
    assert (3, 12) == (sum(counts), total)
    assert 3 == counts[3] + counts[4], "5 s belongs to its own bucket"
