"""Records -> rows."""

from __future__ import annotations

import msgspec

from server.record import GenerationRecord
from server.store.tables import ledger
from server.usage.row import LedgerRow, row_of


def a_record(**values: object) -> GenerationRecord:
    base: dict[str, object] = {
        "request_id": "req-1",
        "tenant": "acme",
        "model": "kimi-k3",
        "arrived_s": 100.0,
        "arrived_unix_ms": 1_700_000_000_000,
        "key_id": "key-1",
        "num_input_tokens": 11,
        "num_cached_tokens": 7,
        "num_output_tokens": 5,
        "num_reasoning_tokens": 2,
        "num_discarded_tokens": 3,
        "num_draft_tokens": 9,
        "num_accepted_tokens": 4,
        "num_images": 1,
        "cost_nano_usd": 12_345,
        "admitted_s": 100.0,
        "outcome": "finished",
        "finish_reason": "stop",
    }
    return GenerationRecord(**{**base, **values})  # type: ignore[arg-type]


def test_fields_are_the_columns() -> None:
    assert set(LedgerRow.__struct_fields__) == set(ledger.columns.keys())


def test_times_are_of_the_calendar() -> None:
    row = row_of(a_record(admitted_s=100.25, first_token_s=100.5, ended_s=102.0014), now_s=999.0)

    assert [0, 250, 500, 2001] == [
        time_ms - 1_700_000_000_000  # type: ignore[operator]
        for time_ms in (row.arrived_unix_ms, row.admitted_unix_ms, row.first_token_unix_ms, row.ended_unix_ms)
    ]


def test_what_did_not_happen_has_no_time_and_the_end_is_now() -> None:
    row = row_of(a_record(admitted_s=None), now_s=101.0)

    assert (None, None, 1_700_000_001_000) == (row.admitted_unix_ms, row.first_token_unix_ms, row.ended_unix_ms)


def test_the_row_says_what_the_record_says() -> None:
    row = msgspec.structs.asdict(row_of(a_record(ended_s=100.0), 0.0))

    assert 32 == len(row.pop("id"))
    assert row == {
        "request_id": "req-1",
        "tenant": "acme",
        "key_id": "key-1",
        "model": "kimi-k3",
        "api": "chat",
        "arrived_unix_ms": 1_700_000_000_000,
        "admitted_unix_ms": 1_700_000_000_000,
        "first_token_unix_ms": None,
        "ended_unix_ms": 1_700_000_000_000,
        "input_tokens": 11,
        "cached_tokens": 7,
        "output_tokens": 5,
        "reasoning_tokens": 2,
        "discarded_tokens": 3,
        "draft_tokens": 9,
        "accepted_tokens": 4,
        "images": 1,
        "finish_reason": "stop",
        "outcome": "finished",
        "cost_nano_usd": 12_345,
    }


def test_what_never_reached_the_engine_has_used_nothing() -> None:
    row = row_of(a_record(admitted_s=None, outcome="limited", ended_s=100.0), 0.0)
    counts = [value for name, value in msgspec.structs.asdict(row).items() if name.endswith("_tokens") or name.startswith("cost")]

    assert "limited" == row.outcome
    assert [0] * 8 == counts


def test_each_row_has_an_id_of_its_own() -> None:
    record = a_record(ended_s=100.0)

    assert 100 == len({row_of(record, 0.0).id for _ in range(100)})
