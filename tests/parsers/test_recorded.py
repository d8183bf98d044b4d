"""Recorded outputs, good and bad: what they mean, however they are cut into steps.

`tests/data/recorded/*.json`: `pieces` as `Pen.write` takes them, the joined `events`, and the `recoveries` in full;
`reasoning_bytes` is the number of reasoning tokens where every byte is a token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "data" / "recorded"
CASES = [
    pytest.param(case, id=f"{path.stem}: {case['name']}")
    for path in sorted(FOLDER.glob("*.json"))
    for case in json.loads(path.read_text(encoding="utf-8"))
]
MAX_SPLITS = 250


def read(pen: Any, case: dict[str, Any], steps: list[list[int]]) -> tuple[list[list[Any]], dict[str, int]]:
    parser = pen.parser(thinking=case["thinking"], tools=case.get("tools"))
    events = pen.read(parser, steps, case["reason"])
    return events, parser.recoveries


def test_there_are_recorded_outputs() -> None:
    assert len(CASES) >= 100


@pytest.mark.parametrize("case", CASES)
def test_one_token_a_step_and_all_in_one_step_read_the_same(pen: Any, case: dict[str, Any]) -> None:
    token_ids = pen.write(*case["pieces"])
    expected = (case["events"], case["recoveries"])
    assert expected == read(pen, case, [[token_id] for token_id in token_ids])
    assert expected == read(pen, case, [token_ids])


@pytest.mark.parametrize("case", CASES)
def test_every_split_point_reads_the_same(pen: Any, case: dict[str, Any]) -> None:
    token_ids = pen.write(*case["pieces"])
    expected = (case["events"], case["recoveries"])
    for split in range(1, len(token_ids), 1 + len(token_ids) // MAX_SPLITS):
        assert expected == read(pen, case, [token_ids[:split], token_ids[split:]]), f"split at {split}"


@pytest.mark.parametrize("case", CASES)
def test_speculation_sized_steps_read_the_same(pen: Any, case: dict[str, Any]) -> None:
    token_ids = pen.write(*case["pieces"])
    expected = (case["events"], case["recoveries"])
    for size in (2, 3, 8, 20):
        steps = [token_ids[start : start + size] for start in range(0, len(token_ids), size)]
        assert expected == read(pen, case, steps), f"{size} tokens a step"


@pytest.mark.parametrize("case", [case for case in CASES if "reasoning_bytes" in case.values[0]])
def test_reasoning_tokens_are_counted_without_markers(byte: Any, case: dict[str, Any]) -> None:
    token_ids = byte.write(*case["pieces"])
    for steps in ([token_ids], [[token_id] for token_id in token_ids]):
        parser = byte.parser(thinking=case["thinking"])
        byte.read(parser, steps, case["reason"])
        assert case["reasoning_bytes"] == parser.num_reasoning_tokens


@pytest.mark.parametrize("case", CASES)
def test_ended_calls_are_json_objects_and_cut_ones_are_not(byte: Any, case: dict[str, Any]) -> None:
    events, _ = read(byte, case, [byte.write(*case["pieces"])])
    arguments = {index: text for kind, index, *rest in events if kind == "arguments" for text in rest}
    for kind, index, *_ in events:
        if kind == "end":
            assert isinstance(json.loads(arguments[index]), dict)
        if kind == "cut":
            with pytest.raises(json.JSONDecodeError):
                json.loads(arguments.get(index, ""))
