"""What a grammar derives from schemas of old drafts is valid for the validator that calls and answers are checked with."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from server.grammar.base import Bounds, Shape
from server.schemas.check import check_schema
from server.schemas.validator import SchemaValidator
from tests.grammar.conftest import Speaker
from tests.grammar.random_answers import Derivation
from tests.grammar.test_derivations import SMALL, tool, unrepeated
from tests.schemas.old_spellings import CHOSEN, made_up_root

UNHELD: dict[str, tuple[str, ...]] = {
    "Java": ("tools[0].function.parameters.properties.to.$ref",),
    "trifles of draft 4": ("tools[0].function.parameters.dependencies",),
    "words unknown to draft 4": ("tools[0].function.parameters.properties.b.oneOf",),
}


def check_derived(speaker: Speaker, schema: dict[str, Any], rng: random.Random, bounds: Bounds, num: int) -> tuple[str, ...]:
    """Arguments and answers by chance fit, where all is held; returns what is not."""
    validator = SchemaValidator(check_schema(schema, "s"))
    assert validator.holds
    called = speaker.compiled(Shape(tools=[tool(schema)], tool_choice="required"), bounds)
    json_schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answered = speaker.compiled(Shape(response_format=json_schema), bounds)
    assert len(called.unenforced) == len(answered.unenforced)
    for _ in range(num):
        calls = speaker.read(Derivation(speaker, called, rng).token_ids()).calls
        answer = speaker.read(Derivation(speaker, answered, rng).token_ids()).content
        for text in [*(call.arguments for call in calls), answer]:
            if not called.unenforced and unrepeated(text) is not None:
                assert validator.errors(json.loads(text)) is None, text
    return called.unenforced


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_schemas_are_held(byte: Speaker, name: str) -> None:
    for bounds in (Bounds(), SMALL):
        assert UNHELD.get(name, ()) == check_derived(byte, CHOSEN[name][1], random.Random(name), bounds, num=20)


@pytest.mark.parametrize("draft", [4, 7])
@pytest.mark.parametrize("seed", range(60))
def test_made_up_schemas_are_held(byte: Speaker, seed: int, draft: int) -> None:
    rng = random.Random(f"{draft} {seed}")
    schema = made_up_root(rng, draft)

    assert draft == check_schema(schema, "s").draft
    assert () == check_derived(byte, schema, rng, rng.choice((Bounds(), SMALL)), num=4)


def test_a_number_outside_of_an_open_bound_is_not_derived(byte: Speaker) -> None:
    schema = {"properties": {"a": {"minimum": 1, "exclusiveMinimum": True, "enum": [1, 2]}}, "required": ["a"]}
    found = byte.compiled(Shape(tools=[tool(schema)], tool_choice="required"), Bounds(calls=1))
    read = byte.read(Derivation(byte, found, random.Random(1)).token_ids())

    assert ['{"a": 2}'] == [call.arguments for call in read.calls]


def test_references_below_another_name_are_left_to_the_check(byte: Speaker) -> None:
    inner = {"$id": "http://x/a", "$defs": {"t": {"type": "integer"}}, "properties": {"n": {"$ref": "#/$defs/t"}}}
    schema = {"properties": {"p": inner, "q": {"$ref": "#/$defs/s"}}, "$defs": {"t": {"type": "null"}, "s": {"type": "null"}}}
    found = byte.compiled(Shape(tools=[tool(schema)]), Bounds())

    assert ("tools[0].function.parameters.properties.p.properties.n.$ref",) == found.unenforced
