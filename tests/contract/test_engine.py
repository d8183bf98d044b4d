"""What every engine promises (`server/engine/base.py`), asked of the scripted and of the real one.

The real engine is shared by the session: no test here may close or kill it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import pytest

from server.engine.base import Engine, EngineDelta, EngineStats
from server.errors import ContextLengthError, InvalidRequestError

pytestmark = pytest.mark.asyncio(loop_scope="session")

Client = Any  # of conftest
COLOURS, NUMBERS = "Name some colours.", "Write some numbers."
LONG = "The quick brown fox jumps over the lazy dog. " * 60
ENDLESS = {"max_tokens": 1000, "ignore_eos": True}


def token_ids(deltas: Sequence[EngineDelta]) -> list[int]:
    return list(chain.from_iterable(delta.token_ids for delta in deltas))


def finishes(deltas: Sequence[EngineDelta]) -> list[str | None]:
    return [delta.finish_reason for delta in deltas]


async def test_exactly_the_last_delta_has_a_finish_reason(client: Client) -> None:
    deltas = await client.ask()
    assert [None] * (len(deltas) - 1) == finishes(deltas)[:-1]
    assert finishes(deltas)[-1] in {"stop", "length"}
    assert all(delta.token_ids for delta in deltas[:-1])


@pytest.mark.parametrize("max_tokens", [1, 2, 7, 16])
async def test_max_tokens_is_exact(client: Client, max_tokens: int) -> None:
    deltas = await client.ask(sampling={"max_tokens": max_tokens, "ignore_eos": True})
    assert (max_tokens, "length") == (len(token_ids(deltas)), deltas[-1].finish_reason)


async def test_generated_ids_are_of_the_vocabulary(client: Client) -> None:
    made = token_ids(await client.ask(sampling={"max_tokens": 32}))
    assert all(0 <= token_id < client.engine.vocabulary.size for token_id in made)


async def test_a_stop_token_ends_the_answer_and_is_included_and_named(client: Client) -> None:
    ends = client.engine.facts.end_token_ids
    greedy = token_ids(await client.ask(sampling={"max_tokens": 8, "ignore_eos": True}))
    stop = next(token_id for token_id in reversed(greedy) if token_id not in ends)
    expected = greedy[: greedy.index(stop) + 1]
    deltas = await client.ask(sampling={"max_tokens": 8, "ignore_eos": True, "stop_token_ids": (stop,)})
    assert (expected, "stop", stop) == (token_ids(deltas), deltas[-1].finish_reason, deltas[-1].stop_reason)


async def test_the_models_own_end_token_ends_the_answer_without_a_stop_reason(client: Client) -> None:
    (end,) = client.engine.facts.end_token_ids
    deltas = await client.ask_in_chat(COLOURS, sampling={"max_tokens": 150})
    assert ("stop", end, None) == (deltas[-1].finish_reason, token_ids(deltas)[-1], deltas[-1].stop_reason)
    assert 1 == token_ids(deltas).count(end)


async def test_the_end_token_can_be_ignored(client: Client) -> None:
    (end,) = client.engine.facts.end_token_ids
    ended = token_ids(await client.ask_in_chat(COLOURS, sampling={"max_tokens": 150}))
    deltas = await client.ask_in_chat(COLOURS, sampling={"max_tokens": 150, "ignore_eos": True})
    assert (150, "length") == (len(token_ids(deltas)), deltas[-1].finish_reason)
    assert ended == token_ids(deltas)[: len(ended)]
    assert end == ended[-1]


async def test_a_new_prompt_is_not_cached_and_the_same_again_is(client: Client) -> None:
    num_prompt_tokens = len(client.engine.vocabulary.encode(LONG))
    assert num_prompt_tokens > 500
    first, second = await client.ask(LONG), await client.ask(LONG)
    assert {0} == {delta.num_cached_tokens for delta in first}
    assert 1 == len({delta.num_cached_tokens for delta in second})
    assert num_prompt_tokens // 2 < second[0].num_cached_tokens < num_prompt_tokens


async def test_another_salt_finds_nothing_in_the_cache(new_client: Callable[[], Client]) -> None:
    one, other = new_client(), new_client()
    await one.ask(LONG)
    assert 0 == (await other.ask(LONG))[0].num_cached_tokens
    assert (await one.ask(LONG))[0].num_cached_tokens > 0


async def test_a_cached_prompt_gets_the_same_answer(client: Client) -> None:
    assert token_ids(await client.ask(LONG)) == token_ids(await client.ask(LONG))


async def test_requests_side_by_side_do_not_mix(client: Client) -> None:
    # Echoes: a real model's rounding depends on its neighbours, so its answers are compared where it is sure of them.
    texts = ("Say exactly: red and blue colours", "Say exactly: the numbers four and five")
    alone = [token_ids(await client.ask_in_chat(text)) for text in texts]
    together = await asyncio.gather(*(client.ask_in_chat(text) for text in texts * 2))
    assert alone[0] != alone[1]
    assert alone * 2 == [token_ids(deltas) for deltas in together]


async def test_nothing_runs_before_the_first_delta_is_asked_for(client: Client) -> None:
    generation = client.generate()
    assert 0 == client.engine.num_unfinished
    await generation.aclose()


async def test_a_running_request_counts_until_its_last_delta(client: Client) -> None:
    generation = client.generate(sampling=ENDLESS | {"max_tokens": 4})
    delta = await anext(generation)
    assert 1 == client.engine.num_unfinished
    while delta.finish_reason is None:
        delta = await anext(generation)
    assert 0 == client.engine.num_unfinished
    with pytest.raises(StopAsyncIteration):
        await anext(generation)


async def test_closing_the_generator_frees_the_seat(client: Client) -> None:
    generation = client.generate(sampling=ENDLESS)
    await anext(generation)
    assert 1 == client.engine.num_unfinished
    await generation.aclose()
    await client.ask(sampling={"max_tokens": 1})  # an engine step at most may pass
    assert 0 == client.engine.num_unfinished


async def test_cancelling_the_reader_frees_the_seat(client: Client) -> None:
    running = asyncio.Event()

    async def read() -> None:
        async for _ in client.generate(sampling=ENDLESS):
            running.set()

    task = asyncio.ensure_future(read())
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await client.ask(sampling={"max_tokens": 1})
    assert 0 == client.engine.num_unfinished


async def test_seats_are_freed_however_many_leave(client: Client) -> None:
    generations = [client.generate(sampling=ENDLESS) for _ in range(min(client.engine.facts.seats, 4))]
    await asyncio.gather(*(anext(generation) for generation in generations))
    assert len(generations) == client.engine.num_unfinished
    await asyncio.gather(*(generation.aclose() for generation in generations))
    assert 8 == len(token_ids(await client.ask(sampling={"max_tokens": 8, "ignore_eos": True})))
    assert 0 == client.engine.num_unfinished


async def test_an_aborted_request_ends_with_a_last_delta(client: Client) -> None:
    generation = client.generate(request_id="to-abort", sampling=ENDLESS)
    deltas = [await anext(generation)]
    await client.engine.abort("to-abort")
    deltas += [delta async for delta in generation]
    assert [None] * (len(deltas) - 1) + ["abort"] == finishes(deltas)
    assert 0 < len(token_ids(deltas)) < ENDLESS["max_tokens"]
    assert 0 == client.engine.num_unfinished


async def test_an_abort_reaches_only_its_own_request(client: Client) -> None:
    expected = token_ids(await client.ask(NUMBERS))
    aborted = client.generate(request_id="to-abort", sampling=ENDLESS)
    kept = client.generate(NUMBERS, request_id="to-keep")
    deltas = [await anext(kept)]
    await anext(aborted)
    await client.engine.abort("to-abort")
    deltas += [delta async for delta in kept]
    assert ["abort"] == [delta.finish_reason async for delta in aborted if delta.finish_reason]
    assert expected == token_ids(deltas)


async def test_aborting_what_does_not_run_is_ignored(client: Client) -> None:
    await client.ask(request_id="done")
    for request_id in ("done", "never-seen"):
        await client.engine.abort(request_id)
    assert 8 == len(token_ids(await client.ask(request_id="done", sampling={"ignore_eos": True})))


async def test_a_request_id_may_be_used_again_but_not_twice_at_once(client: Client) -> None:
    generation = client.generate(request_id="same", sampling=ENDLESS)
    await anext(generation)
    with pytest.raises(InvalidRequestError, match="same"):
        await client.ask(request_id="same")
    assert (await anext(generation)).token_ids
    await generation.aclose()
    assert (await client.ask(request_id="same"))[-1].finish_reason is not None


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        (lambda engine: [], InvalidRequestError),
        (lambda engine: [1, engine.vocabulary.size], InvalidRequestError),
        (lambda engine: [1, -1], InvalidRequestError),
        (lambda engine: [1] * engine.facts.context_length, ContextLengthError),
        (lambda engine: [1] * (engine.facts.context_length + 1), ContextLengthError),
    ],
    ids=["empty", "id too large", "negative id", "no room", "too long"],
)
async def test_an_invalid_prompt_is_refused_first_and_harms_nobody(
    client: Client, prompt: Callable[[Engine], list[int]], error: type[InvalidRequestError]
) -> None:
    generation = client.generate(prompt(client.engine))
    with pytest.raises(error):
        await anext(generation)
    assert (0, False) == (client.engine.num_unfinished, client.engine.dead)
    assert 8 == len(token_ids(await client.ask(sampling={"ignore_eos": True})))


async def test_an_invalid_grammar_is_refused(client: Client) -> None:
    with pytest.raises(InvalidRequestError):
        await anext(client.generate(grammar="{", reasoning_ended=True))
    assert (0, False) == (client.engine.num_unfinished, client.engine.dead)


async def test_an_invalid_request_leaves_running_ones_alone(client: Client) -> None:
    expected = token_ids(await client.ask(NUMBERS))
    generation = client.generate(NUMBERS)
    deltas = [await anext(generation)]
    with pytest.raises(InvalidRequestError):
        await client.ask([])
    deltas += [delta async for delta in generation]
    assert expected == token_ids(deltas)


async def test_no_log_probabilities_unless_asked_for(client: Client) -> None:
    assert {None} == {delta.logprobs for delta in await client.ask()}


@pytest.mark.parametrize("num_top", [0, 1, 3])
async def test_log_probabilities_are_aligned_with_the_tokens(client: Client, num_top: int) -> None:
    deltas = await client.ask(sampling={"logprobs": num_top, "ignore_eos": True})
    entries = list(chain.from_iterable(delta.logprobs for delta in deltas if delta.logprobs))
    assert token_ids(deltas) == [entry.token_id for entry in entries]
    assert all(len(delta.token_ids) == len(delta.logprobs) for delta in deltas if delta.token_ids)
    for entry in entries:
        assert entry.logprob <= 0
        assert num_top == len(entry.top)
        assert sorted((logprob for _, logprob in entry.top), reverse=True) == [logprob for _, logprob in entry.top]


async def test_facts_are_sane(client: Client) -> None:
    facts, vocabulary = client.engine.facts, client.engine.vocabulary
    assert facts.context_length > 1024
    assert facts.seats >= 1
    assert facts.end_token_ids
    assert vocabulary.control_ids >= set(facts.end_token_ids)
    assert facts is client.engine.facts


async def test_the_vocabulary_keeps_text_and_control_apart(client: Client) -> None:
    vocabulary = client.engine.vocabulary
    assert vocabulary.size == len(vocabulary.pieces)
    assert vocabulary.control_ids >= set(vocabulary.control.values())
    for name, token_id in vocabulary.control.items():
        assert name == vocabulary.decode([token_id])
        assert vocabulary.control_ids.isdisjoint(vocabulary.encode(name))
        assert name == vocabulary.decode(vocabulary.encode(name))


async def test_chats_are_rendered_to_a_prompt(client: Client) -> None:
    vocabulary = client.engine.vocabulary
    rendered = await client.engine.render_chat([{"role": "user", "content": "Name some colours."}], (), {})
    assert all(0 <= token_id < vocabulary.size for token_id in rendered)
    assert "Name some colours." in vocabulary.decode(rendered)
    assert (await client.ask(rendered))[-1].finish_reason is not None


async def test_statistics_count_up_and_the_object_stays(client: Client) -> None:
    stats: EngineStats = client.engine.stats
    before = (stats.num_prefix_queried_tokens, stats.num_prefix_hit_tokens)
    await client.ask(LONG)
    (*_, last) = await client.ask(LONG)
    await client.ask(sampling={"max_tokens": 2})  # figures come with the engine's steps
    assert stats is client.engine.stats
    num_prompt_tokens = len(client.engine.vocabulary.encode(LONG))
    assert stats.num_prefix_queried_tokens - before[0] >= 2 * num_prompt_tokens
    assert stats.num_prefix_hit_tokens - before[1] >= last.num_cached_tokens > 0
    assert (0, 0) == (stats.num_running, stats.num_waiting)


async def test_a_living_engine_is_not_dead(client: Client) -> None:
    waiting = asyncio.ensure_future(client.engine.wait_dead())
    await client.ask()
    assert (False, False) == (client.engine.dead, waiting.done())
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
