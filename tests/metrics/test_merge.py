"""The scrapes of several processes, made into one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from server.metrics import catalog
from server.metrics.collectors import AdmissionFigures
from server.metrics.merge import MergedScrape
from server.metrics.recorder import Recorder
from server.record import GenerationRecord

MODELS = ["kimi-k3", "other-model"]
EIGHTHS = st.integers(0, 8 * 1000).map(lambda number: number / 8)
"""Seconds whose sums have no rounding, so that their order does not matter."""


@st.composite
def records(draw: st.DrawFn) -> GenerationRecord:
    count = st.integers(0, 10**6)
    record = GenerationRecord(
        "r", draw(st.sampled_from(["", "acme", 'q"uote', "b\\c", "emca"])), draw(st.sampled_from([*MODELS, "?"])), 0.0
    )
    record.num_input_tokens, record.num_cached_tokens, record.num_output_tokens = draw(count), draw(count), draw(count)
    record.num_draft_tokens, record.num_accepted_tokens = draw(st.sampled_from([(0, 0), (7, 3)]))
    record.outcome = draw(st.sampled_from(catalog.OUTCOME.values))
    record.rejected_by = draw(st.sampled_from([None, "queue_full", "?"]))
    record.tool_calls = draw(st.dictionaries(st.sampled_from(catalog.CALL.values), st.integers(1, 9), max_size=2))
    record.recoveries = draw(st.dictionaries(st.sampled_from(catalog.RECOVERY.values), st.integers(1, 9), max_size=2))
    record.choice_speeds = draw(st.lists(EIGHTHS, max_size=2))
    record.ended_s, record.first_token_s = draw(st.none() | EIGHTHS), draw(st.none() | EIGHTHS)
    return record


def count(recorder: Recorder, ended: Sequence[GenerationRecord]) -> None:
    for record in ended:
        recorder.started(record)
        recorder.ended(record)


def part(recorder: Recorder) -> list[str]:
    async def read() -> list[str]:
        return [text.decode() async for text in recorder.part()]

    return asyncio.run(read())


def merged(parts: Sequence[Sequence[str]], steps_s: Sequence[dict[str, float]] | None = None) -> str:
    scrape = MergedScrape()
    for index, texts in enumerate(parts):
        scrape.begin(steps_s[index] if steps_s else {})
        for text in texts:
            scrape.add(text)
    return "".join(scrape.pieces())


def samples(text: str) -> dict[Any, float]:
    """Every series and its value; the text is one that Prometheus reads."""
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    values = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in found}
    assert len(found) == len(values), "a series is told twice"
    return values


@given(st.lists(st.lists(records(), max_size=4), min_size=1, max_size=4))
def test_the_whole_is_what_one_that_saw_all_would_say(shares: list[list[GenerationRecord]]) -> None:
    alone = Recorder(MODELS)
    workers = [Recorder(MODELS) for _ in shares]
    for recorder, share in zip(workers, shares, strict=True):
        count(recorder, share)
        count(alone, share)

    assert samples("".join(part(alone))) == samples(merged([part(recorder) for recorder in workers]))


def test_families_are_those_of_one_each_once() -> None:
    heads = [line for line in "".join(part(Recorder(MODELS))).splitlines() if line.startswith("#")]

    assert heads == [line for line in merged([part(Recorder(MODELS)) for _ in range(3)]).splitlines() if line.startswith("#")]


def test_gauges_follow_the_rule_of_the_catalog() -> None:
    recorders = [Recorder(MODELS) for _ in range(2)]
    for index, recorder in enumerate(recorders):
        recorder.describe("1.0", "scripted", "")
        figures = AdmissionFigures(
            queued={"acme": 2 + index},
            weights={"acme": 4.0},
            budget_left=[("acme", 0.5 - index / 4)],
            num_pending_rows=3,
            limits_up=index == 0,
            num_held_bytes=100,
        )
        recorder.watch_admission(lambda figures=figures: figures)  # type: ignore[misc]

    found = samples(merged([part(recorder) for recorder in recorders]))
    acme = (("tenant", "acme"),)
    assert [5, 4, 0.25, 6, 0, 200] == [
        found[f"k3gw_{name}", labels]
        for name, labels in (
            ("queued_requests", acme),
            ("tenant_weight", acme),
            ("budget_remaining_ratio", acme),
            ("ledger_pending_rows", ()),
            ("limits_store_up", ()),
            ("held_bytes", ()),
        )
    ]
    assert 1 == found["k3gw_build_info", (("engine", "scripted"), ("profile", ""), ("version", "1.0"))]


VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {0}
vllm:num_requests_running{{engine="1",model_name="m"}} {1}
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {2}
# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf",model_name="m"}} {2}
vllm:time_to_first_token_seconds_count{{engine="0",model_name="m"}} {2}
"""


def test_of_vllms_gauges_the_newest_of_each_engine_counts_and_the_rest_adds_up() -> None:
    parts = [[VLLM.format(1.0, 2.0, 10.0)], [VLLM.format(3.0, 4.0, 20.0)], [VLLM.format(5.0, 6.0, 40.0)]]

    found = merged(parts, [{"0": 7.0, "1": 1.0}, {"0": 5.0, "1": 9.0}, {}])
    assert found == VLLM.format(1.0, 4.0, 70.0)


def test_lines_may_come_in_any_pieces_of_whole_lines() -> None:
    lines = VLLM.format(1.0, 2.0, 10.0).splitlines(keepends=True)

    assert VLLM.format(1.0, 2.0, 20.0) == merged([lines, lines])


@pytest.mark.parametrize("name", ["a\u2028b", "a\x85b", "a\x0cb", "a b{c}"])
def test_the_folder_of_vllms_model_may_be_named_anything(name: str) -> None:
    text = VLLM.format(1.0, 2.0, 10.0).replace('model_name="m"', f'model_name="{name}"')

    assert text == merged([[text]])


def test_numbers_that_are_none_are_written_as_the_format_has_them() -> None:
    text = "# TYPE vllm:a gauge\nvllm:a +Inf\n# TYPE vllm:b gauge\nvllm:b NaN\n"

    assert text == merged([[text]])
