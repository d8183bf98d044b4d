"""The set of schemas is sound, and the check of calls finds what it is for."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import jsonschema_rs
import pytest

from bench.chat_answers import Answer, merged
from bench.tool_schemas import ALL_MODES, BEYOND_GRAMMAR, NAMES, SCHEMAS, Case, Mode, fault_of, load, run, spread

WHOLE, STREAMED = Mode(False, 0.0), Mode(True, 0.0)
CASE = Case(
    "set_day",
    {"type": "object", "properties": {"day": {"type": "string", "format": "date"}, "n": {"maximum": 3}}, "required": ["day"]},
    {"day": "2026-01-31"},
)
GOOD = '{"day": "2026-01-31", "n": 3}'
CASES = load((*NAMES, BEYOND_GRAMMAR))
INVALID: list[dict[str, Any]] = json.loads((SCHEMAS / "invalid.json").read_text(encoding="utf-8"))


def frame(delta: dict[str, Any] | None = None, finish: str | None = None) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}]})


def call(index: int = 0, **function: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, **({"id": f"call_{index}"} if "name" in function else {}), "function": function}]}


def kind(answer: Answer) -> str | None:
    fault = fault_of(CASE, WHOLE, answer)
    return fault and fault.kind


def script() -> list[dict[str, Any]]:
    """Each tool, asked for by its name, is called with its example."""
    rules = []
    for case in CASES:
        arguments = [{"argument": {"key": key, "value": value}} for key, value in case.example.items()]
        call = [{"call": {"tool": case.name, "index": 1}}, *arguments, "</call>"]
        control = {"control": ["</response>", "<tools>", *call, "</tools>", "</message>"]}
        rules.append({"when": {"contains": f"Call {case.name} with"}, "reply": [control, "stop"]})
    return rules


def test_the_set_is_large_and_names_differ() -> None:
    assert len(load()) >= 160
    assert {1} == set(Counter(case.name for case in CASES).values())


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_example_fits(case: Case) -> None:
    assert fault_of(case, WHOLE, Answer(200, "tool_calls", calls=[(case.name, json.dumps(case.example))])) is None


def test_the_invalid_ones_are_invalid() -> None:
    """What is wrong with a keyword or a reference is found without an instance; the others are schemas that nothing fits."""
    found = set()
    for entry in INVALID:
        try:
            validator = jsonschema_rs.validator_for(entry["parameters"])
        except ValueError:
            found.add(entry["name"])
        else:
            assert entry["kind"] in ("endless", "unsatisfiable"), entry["name"]
            if "endless" != entry["kind"]:
                assert not any(map(validator.is_valid, ({}, {"a": 1}, {"a": "abc"}, {"b": 1}))), entry["name"]
    assert {entry["name"] for entry in INVALID if entry["kind"] in ("keyword", "reference")} == found


def test_modes_are_spread_evenly_and_alike_each_time() -> None:
    plan = spread(CASES, ALL_MODES, seed=7)
    assert sorted(case.name for case in CASES) == sorted(case.name for case, _ in plan)
    counts = Counter(mode for _, mode in plan)
    assert set(ALL_MODES) == set(counts)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert plan == spread(CASES, ALL_MODES, seed=7) != spread(CASES, ALL_MODES, seed=8)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(200, "tool_calls", calls=[("set_day", GOOD)]), None),
        (Answer(200, "tool_calls", calls=[("set_day", GOOD)] * 2), None),
        (Answer(400, content="no"), "refused"),
        (Answer(200, "tool_calls", calls=[("set_day", GOOD)], broken="x"), "broken"),
        (Answer(200, "length", calls=[("set_day", GOOD)]), "truncated"),
        (Answer(200, "stop", content="set_day()"), "no call"),
        (Answer(200, "stop", calls=[("set_day", GOOD)]), "finish"),
        (Answer(200, "tool_calls", content="a<|sep|>", calls=[("set_day", GOOD)]), "leak"),
        (Answer(200, "tool_calls", calls=[("set_day", GOOD), ("other", GOOD)]), "wrong tool"),
        (Answer(200, "tool_calls", calls=[("set_day", GOOD[:-1])]), "not JSON"),
        (Answer(200, "tool_calls", calls=[("set_day", '{"day": "2026-01-31", "day": "2026-01-31"}')]), "duplicate"),
        (Answer(200, "tool_calls", calls=[("set_day", "[]")]), "not JSON"),
        (Answer(200, "tool_calls", calls=[("set_day", '{"n": 1}')]), "invalid"),
        (Answer(200, "tool_calls", calls=[("set_day", '{"day": "2026-01-31", "n": 4}')]), "invalid"),
        (Answer(200, "tool_calls", calls=[("set_day", GOOD), ("set_day", "{}")]), "invalid"),
        (Answer(200, "tool_calls", calls=[("set_day", '{"day": "tomorrow"}')]), "format"),
    ],
)
def test_each_fault_is_found(answer: Answer, expected: str | None) -> None:
    assert expected == kind(answer)


def test_deltas_are_merged() -> None:
    deltas = [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, call(name="f", arguments="")]
    deltas += [call(arguments='{"x"'), call(arguments=": 1}"), call(1, name="g", arguments="{}")]
    answer = merged([*map(frame, deltas), frame(finish="tool_calls"), '{"choices": [], "usage": {}}', "[DONE]"])
    assert Answer(200, "tool_calls", "ab", [("f", '{"x": 1}'), ("g", "{}")]) == answer


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [frame(finish="stop")],
        [frame(), "[DONE]"],
        [frame(finish="stop"), frame(finish="stop"), "[DONE]"],
        [frame(finish="stop"), frame({"content": "late"}), "[DONE]"],
        [frame(call(arguments="{}")), frame(finish="tool_calls"), "[DONE]"],
        [frame(call(1, name="f")), frame(finish="tool_calls"), "[DONE]"],
        [frame(call(name="f")), frame(call(1, name="g")), frame(call(arguments="{}")), frame(finish="tool_calls"), "[DONE]"],
        [frame({"content": "a"}), '{"error": {"message": "died"}}'],
    ],
)
def test_a_stream_that_breaks_its_rules_is_told(frames: list[str]) -> None:
    assert merged(frames).broken


@pytest.mark.parametrize("mode", [WHOLE, STREAMED])
async def test_every_example_arrives_over_http(start_gateway: Any, mode: Mode) -> None:
    gateway = start_gateway(script())
    faults = await run(
        f"{gateway.url}/v1", gateway.headers["authorization"][7:], [(case, mode) for case in CASES], max_tokens=100_000
    )
    assert [] == faults
