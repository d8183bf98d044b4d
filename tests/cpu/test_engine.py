"""What is vLLM's own about the real engine; what it shares with the scripted one is in `tests/contract`."""

from __future__ import annotations

import asyncio
import json
import random
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client import REGISTRY

from server.engine.base import Engine
from server.errors import InvalidRequestError

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

Asker = Any  # of conftest


def words(seed: int, num_tokens: int) -> list[int]:
    """A prompt of ordinary tokens."""
    return random.Random(seed).choices(range(500, 40_000), k=num_tokens)


def signals_blocked(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk"))


async def test_a_slow_reader_gets_fewer_deltas_and_the_same_tokens(asker: Asker, echo: list[int]) -> None:
    expected = await asker.token_ids(echo, sampling={"max_tokens": 24})
    slow = asker.generate(echo, sampling={"max_tokens": 24})
    deltas = [await anext(slow)]
    for _ in range(3):  # while another request makes its steps, nobody reads
        await asker.ask(sampling={"max_tokens": 8})
    deltas += [delta async for delta in slow]
    assert expected == list(chain.from_iterable(delta.token_ids for delta in deltas))
    assert len(deltas) < 10


async def test_all_seats_at_once(asker: Asker) -> None:
    seats = asker.engine.facts.seats
    answers = await asyncio.gather(*(asker.token_ids(words(i, 20), sampling={"max_tokens": 6}) for i in range(seats + 4)))
    assert [6] * (seats + 4) == [len(answer) for answer in answers]


async def test_seeded_long_prompts_at_once_do_not_end_the_engine(asker: Asker) -> None:
    # More prompt tokens than one step takes, none of them cached: prefilled in parts, the first seeded one would end the engine.
    sampling = {"temperature": 1.0, "seed": 7, "max_tokens": 2}
    answers = await asyncio.gather(*(asker.token_ids(words(i, 700), sampling=sampling) for i in range(14)))
    assert [2] * 14 == [len(answer) for answer in answers]
    assert not asker.engine.dead


async def test_a_seed_repeats_an_answer(asker: Asker) -> None:
    sampling = {"temperature": 1.5, "max_tokens": 12}
    first, again, other = [await asker.token_ids(sampling={**sampling, "seed": seed}) for seed in (11, 11, 12)]
    assert first == again
    assert first != other


async def test_leaving_frees_the_engine_itself(asker: Asker) -> None:
    generations = [asker.generate(sampling={"max_tokens": 2000}) for _ in range(3)]
    await asyncio.gather(*(anext(generation) for generation in generations))
    assert asker.engine.stats.num_running == 3
    await asyncio.gather(*(generation.aclose() for generation in generations))
    running = [asker.engine.stats.num_running async for _ in asker.generate(sampling={"max_tokens": 12})]
    assert running[-2] <= 1
    assert (0, 0, 0.0) == (asker.engine.stats.num_running, asker.engine.stats.num_waiting, asker.engine.stats.kv_cache_usage)


async def test_a_greedy_token_is_the_best_of_its_alternatives(asker: Asker) -> None:
    for delta in await asker.ask(sampling={"logprobs": 3, "max_tokens": 6}):
        for entry in delta.logprobs or ():
            assert (entry.token_id, entry.logprob) in entry.top
            assert entry.logprob == pytest.approx(entry.top[0][1], abs=1e-3)


async def test_speculation_is_told_for_the_request_and_for_the_engine(asker: Asker, echo: list[int]) -> None:
    stats = asker.engine.stats
    before = (stats.num_drafts, stats.num_draft_tokens, sum(stats.accepted_per_position))
    deltas = await asker.ask(echo, sampling={"max_tokens": 32})
    await asker.ask(sampling={"max_tokens": 1})
    assert [None] * (len(deltas) - 1) == [delta.speculation for delta in deltas[:-1]]
    told = deltas[-1].speculation
    assert told is not None
    assert 0 < told.num_accepted_tokens < told.num_draft_tokens <= 4 * told.num_drafts
    after = (stats.num_drafts, stats.num_draft_tokens, sum(stats.accepted_per_position))
    gained = tuple(now - then for now, then in zip(after, before, strict=True))
    assert (told.num_drafts, told.num_draft_tokens, told.num_accepted_tokens) == gained
    assert len(stats.accepted_per_position) == 4


async def test_a_grammar_holds_from_the_first_token(asker: Asker) -> None:
    tag = json.dumps({"type": "structural_tag", "format": {"type": "const_string", "value": "azure, mauve"}})
    sampling = {"max_tokens": 40, "ignore_eos": False}
    (end,) = asker.engine.facts.end_token_ids
    *said, last = await asker.token_ids(grammar=tag, reasoning_ended=True, sampling=sampling)
    assert ("azure, mauve", end) == (asker.engine.vocabulary.decode(said), last)


@pytest.mark.parametrize(
    "sampling", [{"min_p": 0.1, "temperature": 1.0}, {"logit_bias": {5: 1.0}}, {"logprobs": 10_000}, {"top_p": 0.0}]
)
async def test_sampling_that_vllm_refuses_is_the_clients_mistake(asker: Asker, sampling: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(sampling))):
        await asker.ask(sampling=sampling)
    assert (0, False) == (asker.engine.num_unfinished, asker.engine.dead)


async def test_images_are_refused(asker: Asker) -> None:
    with pytest.raises(InvalidRequestError, match="image"):
        await asker.ask(media=(object(),))


async def test_facts_are_those_of_the_checkpoint(vllm_engine: Engine, demo_model: Path) -> None:
    config = json.loads((demo_model / "config.json").read_text(encoding="utf-8"))
    generation = json.loads((demo_model / "generation_config.json").read_text(encoding="utf-8"))
    facts = vllm_engine.facts
    assert (config["max_position_embeddings"], 32, (config["eos_token_id"],)) == (
        facts.context_length,
        facts.seats,
        facts.end_token_ids,
    )
    assert {name: generation[name] for name in ("temperature", "top_p", "top_k") if name in generation} == facts.default_sampling
    assert config["vocab_size"] == vllm_engine.vocabulary.size


async def test_the_models_own_template_renders_a_chat(vllm_engine: Engine) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "ok", "tool_calls": [call]},
        {"role": "user", "content": "Go"},
    ]
    given = deepcopy(messages)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    rendered = await vllm_engine.render_chat(messages, tools, {"date": "today"})
    assert "date: today\ntool: f\nuser: Hi\nassistant: ok\nuser: Go\nassistant: " == vllm_engine.vocabulary.decode(rendered)
    assert given == messages


async def test_a_chat_that_the_template_refuses_is_the_clients_mistake(vllm_engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="the last message is the assistant's"):
        await vllm_engine.render_chat([{"role": "assistant", "content": "Hi"}], (), {})


async def test_vllms_own_metrics_are_in_the_default_registry(asker: Asker) -> None:
    await asker.ask()
    names = {metric.name for metric in REGISTRY.collect()}
    assert {"vllm:num_requests_running", "vllm:prompt_tokens", "vllm:spec_decode_num_drafts"} <= names


async def test_ctrl_c_does_not_reach_the_engines_processes(vllm_engine: Engine) -> None:
    engines = [process for process in psutil.Process().children(recursive=True) if process.name().startswith("VLLM")]
    assert engines
    for process in engines:
        assert signals_blocked(process.pid) & 1 << 1  # bit n - 1 stands for signal n; SIGINT is 2
