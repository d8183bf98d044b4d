"""The engine keeps masks from one grammar to the next: each has its own all the same, whoever was served before."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from server.grammar.base import Bounds, Shape
from tests.grammar.conftest import Engine, Speaker
from tests.grammar.random_answers import Derivation
from tests.grammar.schemas import CHOSEN, made_up_object
from tests.grammar.test_rejections import EngineOf, one, tool

pytestmark = pytest.mark.vllm

ALIKE = [
    *(("^[^<]*$", "^[^\\[]*$", "^[^<\\[]*$", "^[^x]*$", "^[<a]*$", "^[\\[a]*$", "^[<\\[a]*$")),
    *("^[a<]{0,5}$", "^[a\\[]{0,5}$", "^[a-z]{0,5}$", "^<a*$", "^\\[a*$", "^(<|a)b$", "^(\\[|a)b$", "^<\\[<$", "^\\[<\\[$"),
]
"""Patterns whose automata differ in nothing but the characters that names of control tokens begin with."""

BOUNDS = Bounds(counted_chars=20, exact_chars=12)


def schemas() -> Iterator[Any]:
    for pattern in ALIKE:
        yield {"type": "string", "pattern": pattern}
        yield {"type": "string", "pattern": pattern, "maxLength": 7}
        yield {"type": "array", "items": {"type": "string", "pattern": pattern}}
    for text in ("x<|y", "x[By", "<|", "[B", "x<|[B", "x[B<|"):
        yield {"const": text}
        yield {"enum": [[text], {"a": text}]}
    for low, high in ((0, 3), (0, 4), (1, 3), (1, 9), (2, 9), (5, 12), (0, 16), (1, 20)):
        yield {"type": "string", "minLength": low, "maxLength": high}
        yield {"type": "array", "items": {"type": "string", "minLength": low, "maxLength": high}}
    yield {"type": "object", "properties": {"<": {"type": "string"}, "[": {"type": "string"}}}


def shapes() -> list[Shape]:
    form = {"type": "json_schema", "json_schema": {"name": "x"}}
    called = [Shape(tools=[one(schema)], tool_choice="required") for schema in schemas()]
    answered = [
        Shape(response_format={**form, "json_schema": {"name": "x", "schema": schema}}, thinking=bool(number % 2))
        for number, schema in enumerate(schemas())
    ]
    return called + answered


@pytest.mark.parametrize("seed", range(3))
def test_masks_do_not_depend_on_what_was_asked_before(byte: Speaker, engine_of: EngineOf, seed: int) -> None:
    engine_of(byte)  # skips where there is none
    dice = random.Random(seed)
    kept, many = Engine(byte.vocabulary), shapes()
    dice.shuffle(many)
    for shape in many:
        grammar, alone = byte.grammar(shape, BOUNDS), Engine(byte.vocabulary)
        for position in sorted(dice.sample(range(len(grammar.shortest)), 6)):
            token_ids = [*grammar.shortest[:position]]
            for _ in range(4):
                allowed = alone.allowed(grammar, token_ids)
                assert allowed == kept.allowed(grammar, token_ids), (shape, byte.vocabulary.decode(token_ids))
                token_ids.append(dice.choice(sorted(allowed)))
                if token_ids[-1] == byte.markup.end:
                    break


@pytest.mark.parametrize("seed", range(2))
def test_masks_of_any_schema_do_not_depend_on_others(byte: Speaker, engine_of: EngineOf, seed: int) -> None:
    """Recursion, repetition, numbers, keys in any order: at places of answers that are made up."""
    engine_of(byte)
    dice = random.Random(100 + seed)
    kept = Engine(byte.vocabulary)
    many = [*CHOSEN.values(), *(made_up_object(dice) for _ in range(60))]
    dice.shuffle(many)
    for schema in many:
        shape = Shape(tools=[tool(schema)], tool_choice="required")
        bounds = dice.choice((BOUNDS, Bounds(depth=2, json_chars=9, items=3, digits=4, calls=2, extra_keys=1, string_tokens=6)))
        grammar, alone = byte.grammar(shape, bounds), Engine(byte.vocabulary)
        token_ids = Derivation(byte, byte.compiled(shape, bounds), dice).token_ids()
        for position in sorted(dice.sample(range(len(token_ids)), 6)):
            begun = token_ids[:position]
            assert alone.allowed(grammar, begun) == kept.allowed(grammar, begun), (schema, byte.vocabulary.decode(begun))


def test_sets_of_tokens_have_rules_of_their_own(speaker: Speaker) -> None:
    """The same in all grammars, and no two of the same shape, as the engine sees nothing but that."""
    shape_of: dict[str, str] = {}
    for shape in shapes():
        grammar = speaker.grammar(shape, BOUNDS).structural_tag.replace("\\n", "\n").replace('\\"', '"')
        rules = dict(re.findall(r"^(\w+) ::= (Token\(.*)$", grammar, re.MULTILINE))
        named = sum(body.count("Token(") for body in rules.values())
        assert named == len(re.findall(r"\bToken\(", grammar)), "nowhere else, but in what free text has not"
        for body in rules.values():
            alternatives = body.split(" | ")
            assert 1 == len(set(alternatives))
            assert alternatives[0] == shape_of.setdefault(str(len(alternatives)), alternatives[0])
    assert len(set(shape_of.values())) == len(shape_of) == 6
