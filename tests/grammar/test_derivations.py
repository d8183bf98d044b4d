"""Whatever a grammar derives is an answer that our own parser reads as it is meant, and that fits."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from server.grammar.base import Bounds, Shape
from tests.grammar.conftest import Engine, Reading, Speaker
from tests.grammar.random_answers import Derivation
from tests.grammar.schemas import CHOSEN, made_up, made_up_object

NUM_SCHEMAS = 50
SMALL = Bounds(string_tokens=12, json_chars=24, items=3, digits=5, extra_keys=1, calls=3, depth=1, text_tokens=8, think_tokens=8)


def tool(parameters: Any, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def fits(schema: Any, value: Any) -> bool:
    return jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(value)


def unrepeated(text: str) -> Any:
    """The value of JSON in which no object has a key twice, else None: repeated free keys can't be told apart by a grammar."""
    repeated: list[str] = []

    def read(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            repeated.append("")
        return dict(pairs)

    value = json.loads(text, object_pairs_hook=read)
    return None if repeated else (value,)


def check_calls(reading: Reading, schema: Any) -> None:
    if reading.recoveries.pop("duplicate_argument", 0):
        return
    assert reading.recoveries == {}
    for call in reading.calls:
        if (value := unrepeated(call.arguments)) is not None:
            assert fits(schema, value[0]), call.arguments


def check_arguments(speaker: Speaker, seed: int) -> None:
    rng = random.Random(seed)
    schema = made_up_object(rng, depth=rng.choice((2, 3, 4)))
    bounds = rng.choice((Bounds(), SMALL))
    shape = Shape(thinking=rng.random() < 0.5, tools=[tool(schema)], tool_choice=rng.choice(("auto", "required")))
    found = speaker.compiled(shape, bounds)

    assert found.unenforced == ()
    for _ in range(5):
        token_ids = Derivation(speaker, found, rng, budget=rng.choice((50, 400, 1500))).token_ids()
        check_calls(speaker.read(token_ids, thinking=shape.thinking), schema)


@pytest.mark.parametrize("seed", range(NUM_SCHEMAS))
def test_arguments_fit_their_schema(byte: Speaker, seed: int) -> None:
    check_arguments(byte, seed)


@pytest.mark.long
def test_arguments_fit_a_thousand_schemas(byte: Speaker) -> None:
    for seed in range(1_000, 2_000):
        check_arguments(byte, seed)


@pytest.mark.parametrize("seed", range(NUM_SCHEMAS))
def test_responses_fit_their_schema(byte: Speaker, seed: int) -> None:
    rng = random.Random(seed)
    schema = made_up(rng)
    shape = Shape(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    found = byte.compiled(shape, rng.choice((Bounds(), SMALL)))

    for _ in range(5):
        reading = byte.read(Derivation(byte, found, rng).token_ids())
        assert reading.recoveries == {}
        if (value := unrepeated(reading.content)) is not None:
            assert fits(schema, value[0]), reading.content
        assert not any(blank in reading.content.replace("\\", "") for blank in "\n\t\r")


@pytest.mark.vllm
@pytest.mark.parametrize("seed", range(40))
def test_the_engine_accepts_whatever_is_derived(byte: Speaker, engine_of: Callable[[Speaker], Engine], seed: int) -> None:
    check_acceptance(byte, engine_of(byte), seed)


@pytest.mark.vllm
@pytest.mark.parametrize("seed", range(100, 106))
def test_the_engine_accepts_it_in_k3s_vocabulary(k3: Speaker, engine_of: Callable[[Speaker], Engine], seed: int) -> None:
    check_acceptance(k3, engine_of(k3), seed)


def check_acceptance(speaker: Speaker, engine: Engine, seed: int) -> None:
    rng = random.Random(seed)
    schema = made_up_object(rng, most=6)
    shape = Shape(thinking=rng.random() < 0.5, tools=[tool(schema)], tool_choice=rng.choice(("auto", "required")))
    bounds = rng.choice((Bounds(), SMALL))
    found, grammar = speaker.compiled(shape, bounds), speaker.grammar(shape, bounds)

    assert engine.accepts(grammar, grammar.shortest)
    for _ in range(4):
        token_ids = Derivation(speaker, found, rng).token_ids()
        accepted = engine.num_accepted(grammar, token_ids)
        assert accepted == len(token_ids), speaker.vocabulary.decode(token_ids[: accepted + 1])


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_schemas_are_held(byte: Speaker, name: str) -> None:
    rng = random.Random(name)
    schema = CHOSEN[name]
    shape = Shape(tools=[tool(schema)], tool_choice="required")
    for bounds in (Bounds(), SMALL):
        grammar, found = byte.grammar(shape, bounds), byte.compiled(shape, bounds)

        check_calls(byte.read(grammar.shortest), schema)
        for _ in range(20):
            check_calls(byte.read(Derivation(byte, found, rng).token_ids()), schema)
