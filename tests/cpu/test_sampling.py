"""Sampling on the real engine with speculation on: every wish is honoured, and none harms another request."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from server.engine.base import Engine
from server.errors import InvalidRequestError
from tests.cpu.conftest import Asker

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

CHOICES: dict[str, tuple[Any, ...]] = {
    "temperature": (0.0, 0.3, 1.0, 2.0),
    "top_k": (1, 5, 40, -1),
    "top_p": (0.1, 0.9, 1.0),
    "presence_penalty": (0.5, -1.0),
    "frequency_penalty": (0.5, -0.5),
    "repetition_penalty": (1.2, 0.8),
    "seed": (1, 2, -5),
    "logprobs": (0, 5),
    "max_tokens": (1, 2, 24),
}


async def test_a_temperature_is_honoured_where_tokens_are_drafted(asker: Asker, echo: list[int]) -> None:
    """An echo is what drafting is for: nearly every token is drafted, and a wrong temperature would spoil nearly every one."""
    wanted = {"max_tokens": 40, "ignore_eos": False}
    greedy = await asker.token_ids(echo, sampling=wanted)
    cool = [await asker.token_ids(echo, sampling={**wanted, "temperature": 0.01, "seed": seed}) for seed in range(3)]

    assert [greedy] * 3 == cool


@pytest.mark.parametrize("name", sorted(CHOICES))
async def test_each_parameter_alone(vllm_engine: Engine, asker: Asker, name: str) -> None:
    for value in CHOICES[name]:
        answer = await asker.token_ids(sampling={"temperature": 1.0, name: value})
        assert answer
    assert not vllm_engine.dead


async def test_no_mixture_ends_the_engine(vllm_engine: Engine, asker: Asker) -> None:
    rng = random.Random(20)
    wishes = [{name: rng.choice(values) for name, values in CHOICES.items() if rng.random() < 0.35} for _ in range(60)]
    answers = await asyncio.gather(*(asker.token_ids(sampling=wish) for wish in wishes))

    assert not vllm_engine.dead
    assert [min(wish.get("max_tokens", 8), 24) for wish in wishes] == [len(answer) for answer in answers]


@pytest.mark.parametrize(("name", "value"), [("min_p", 0.1), ("logit_bias", {5: 1.0})])
async def test_what_speculation_rules_out_is_refused_by_name(vllm_engine: Engine, asker: Asker, name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"`{name}`") as caught:
        await asker.ask(sampling={name: value})

    assert caught.value.param == name
    assert not vllm_engine.dead
