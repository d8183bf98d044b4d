"""The record of the scripted engine stays bounded."""

from __future__ import annotations

from server.engine.base import EngineRequest, Sampling
from server.engine.scripted.record import Record


def request(number: int, num_tokens: int = 1) -> EngineRequest:
    return EngineRequest(f"r{number}", [number] * num_tokens, Sampling(1), "salt")


def test_the_newest_entries_stay() -> None:
    record = Record(max_entries=3)
    for number in range(5):
        record.add(request(number))
        record.add_abort(f"r{number}", "abort", known=True)
    kept = record.as_json()
    assert ["r2", "r3", "r4"] == [entry["request_id"] for entry in kept["requests"]]
    assert ["r2", "r3", "r4"] == [abort["request_id"] for abort in kept["aborts"]]


def test_long_prompts_push_out_old_ones_but_not_themselves() -> None:
    record = Record(max_tokens=10)
    for number, num_tokens in enumerate((4, 4, 4, 100, 5, 5, 5)):
        record.add(request(number, num_tokens))
        assert f"r{number}" == record.as_json()["requests"][-1]["request_id"]
    assert ["r5", "r6"] == [entry["request_id"] for entry in record.as_json()["requests"]]
