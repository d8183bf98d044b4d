"""Calls of tools that neither the model nor the grammar has seen, on the real engine: each is delivered and fits its schema."""

from __future__ import annotations

import random
from math import ceil
from typing import Any

import pytest

from bench.tool_schemas import ALL_MODES, BEYOND_GRAMMAR, NAMES, Case, Mode, load, run, spread, table

pytestmark = pytest.mark.vllm

Target = Any  # of conftest
SEED = 20
ONE_IN = 3
"""As many of the schemas are asked for in every run, of each kind; `--long` asks for all, in each mode."""

AT_ONCE = 32  # as many as the engine has seats


def sample() -> list[Case]:
    """Of each kind of schemas the same share, chosen by `SEED`."""
    kinds = [load([name]) for name in NAMES]
    return [case for kind in kinds for case in random.Random(SEED).sample(kind, ceil(len(kind) / ONE_IN))]


async def test_each_call_is_delivered_and_valid(vllm_gateway: Target) -> None:
    """Whole and streamed, at temperature 0 and 1: each schema of the sample in one of the four."""
    plan = spread(sample(), ALL_MODES, SEED)
    faults = await run(vllm_gateway.base_url, vllm_gateway.key, plan, concurrency=AT_ONCE)
    assert [] == list(map(str, faults)), table(plan, faults)


@pytest.mark.long
@pytest.mark.parametrize("mode", ALL_MODES, ids=str)
async def test_each_call_is_delivered_and_valid_in_every_mode(vllm_gateway: Target, mode: Mode) -> None:
    plan = [(case, mode) for case in load()]
    faults = await run(vllm_gateway.base_url, vllm_gateway.key, plan, concurrency=AT_ONCE)
    assert [] == list(map(str, faults)), table(plan, faults)


async def test_what_no_grammar_holds_is_delivered_all_the_same(vllm_gateway: Target) -> None:
    plan = spread(load([BEYOND_GRAMMAR]), ALL_MODES, SEED)
    faults = await run(vllm_gateway.base_url, vllm_gateway.key, plan, concurrency=AT_ONCE)
    assert [] == [str(fault) for fault in faults if fault.kind != "invalid"], table(plan, faults)
