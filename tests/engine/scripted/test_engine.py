"""What the scripted engine does beyond the contract that every engine keeps (`tests/contract`)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from server.clock import ManualClock
from server.engine.base import EngineHints, EngineRequest, EngineStats, Sampling, Speculation
from server.engine.scripted.engine import ScriptedEngine
from server.engine.scripted.polite import ANSWER, REASONING
from server.engine.scripted.run import MAX_LATE_S
from server.engine.scripted.script import parse_script
from server.errors import ContextLengthError, InvalidRequestError, MediaError
from server.images import Image, Pixels, PlacedImage
from server.vocabulary.byte import ByteVocabulary

Staged = Callable[..., Any]
HANG = {"when": {"contains": "hang"}, "reply": [{"text": "…"}, "hang"]}
OK = {"reply": [{"text": "ok"}]}


class Shown:
    """An image whose pixels are counted as they are opened and closed."""

    num_opened = num_closed = 0

    async def pixels(self) -> Any:
        self.num_opened += 1
        return self

    def close(self) -> None:
        self.num_closed += 1


def named(text: str) -> EngineHints:
    return EngineHints(last_user_text=text)


async def test_the_rule_is_chosen_by_the_hints(staged: Staged) -> None:
    stage = staged(
        [{"when": {"tenant": "acme"}, "reply": [{"text": "A"}]}, {"when": {"contains": "x"}, "reply": [{"text": "X"}]}]
    )
    assert "A<|end_of_msg|>" == await stage.text(hints=EngineHints(tenant="acme", last_user_text="x"))
    assert "X<|end_of_msg|>" == await stage.text(hints=named("x"))
    assert [0, 1] == [entry["rule"] for entry in stage.engine.recorded()["requests"]]


@pytest.mark.parametrize(
    ("stub", "expected"),
    [
        (
            "think",
            f"{REASONING}<|close|>think<|sep|><|open|>response<|sep|>{ANSWER}<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>",
        ),
        ("response", f"{ANSWER}<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"),
        (None, f"{ANSWER}<|end_of_msg|>"),
    ],
)
async def test_without_a_rule_the_reply_is_polite_and_in_the_open_channel(
    staged: Staged, vocabulary: ByteVocabulary, stub: str | None, expected: str
) -> None:
    opened = [] if stub is None else [vocabulary.control["<|open|>"], *vocabulary.encode(stub), vocabulary.control["<|sep|>"]]
    assert expected == await staged().text([*vocabulary.encode("Hi"), *opened])


async def test_without_a_rule_an_example_is_played_where_the_request_has_one(staged: Staged, vocabulary: ByteVocabulary) -> None:
    asked: list[int] = []

    def example() -> list[int]:
        asked.append(1)
        return vocabulary.encode('{"a":1}')

    stage = staged([{"when": {"contains": "x"}, "reply": [{"text": "X"}]}])
    assert "X<|end_of_msg|>" == await stage.text(hints=EngineHints(last_user_text="x", example=example))
    assert [] == asked  # a rule wins, and nothing is made in vain
    assert '{"a":1}<|end_of_msg|>' == await stage.text(hints=EngineHints(last_user_text="y", example=example))
    recorded = json.loads(json.dumps(stage.engine.recorded()))  # an example is no JSON, and is left out
    assert [0, None] == [entry["rule"] for entry in recorded["requests"]]


async def test_typed_markers_open_no_channel(staged: Staged) -> None:
    assert f"{ANSWER}<|end_of_msg|>" == await staged().text("<|open|>think<|sep|>")


async def test_a_vocabulary_without_k3s_structure_gets_plain_text() -> None:
    class Plain(ByteVocabulary):
        @property
        def control(self) -> dict[str, int]:
            return {"</s>": 300}

    engine = ScriptedEngine(Plain())
    assert (300,) == engine.facts.end_token_ids
    assert engine.facts.image_rule is None


def test_a_vocabulary_without_any_end_token_is_refused() -> None:
    class Endless(ByteVocabulary):
        @property
        def control(self) -> dict[str, int]:
            return {}

    with pytest.raises(ValueError, match="end_token_ids"):
        ScriptedEngine(Endless())
    assert (10,) == ScriptedEngine(Endless(), end_token_ids=(10,)).facts.end_token_ids


async def test_the_interval_lies_between_the_steps_and_waits_add_to_it(staged: Staged) -> None:
    stage = staged([{"step_interval_ms": 250, "tokens_per_step": 2, "reply": [{"text": "abcd"}, {"wait_ms": 500}, "length"]}])
    reader = await stage.start()
    assert [b"ab"] == [bytes(delta.token_ids) for delta in reader.deltas]
    assert [0.25] == stage.timer.pending
    await stage.advance(0.125)
    assert 1 == len(reader.deltas)
    await stage.advance(0.125)
    assert [b"ab", b"cd"] == [bytes(delta.token_ids) for delta in reader.deltas]
    await stage.advance(0.5)
    assert 2 == len(reader.deltas)
    await stage.advance(0.25)
    assert [None, None, "length"] == [delta.finish_reason for delta in reader.deltas]


async def test_steps_that_come_late_do_not_delay_those_after_them(staged: Staged) -> None:
    stage = staged([{"step_interval_ms": 8, "reply": [{"text": "a" * 1000}, "length"]}])
    reader = await stage.start()
    while len(reader.deltas) < 900:
        stage.timer.clock.advance(0.003)  # the machine is busy when the alarm should ring
        await stage.advance(0.003)
    elapsed_s = stage.timer.now_s() - ManualClock().now_s
    assert pytest.approx(899 * 0.008, abs=0.01) == elapsed_s


async def test_what_a_reader_has_slept_through_is_not_all_caught_up_with(staged: Staged) -> None:
    stage = staged([{"step_interval_ms": 100, "reply": [{"text": "a" * 1000}, "length"]}])
    reader = await stage.start()
    stage.timer.clock.advance(60)
    await stage.advance(0)
    assert pytest.approx(MAX_LATE_S / 0.1, abs=2) == len(reader.deltas)


async def test_a_running_loop_paces_on_the_average(vocabulary: ByteVocabulary) -> None:
    """Unless the machine stands still for longer than is made up for, which is nobody's fault: then it is tried again."""
    rule = {"step_interval_ms": 8.4746, "reply": [{"text": "a" * 60}, "length"]}
    engine = ScriptedEngine(vocabulary, parse_script([rule], vocabulary))

    async def lateness_s(number: int) -> float:
        times_s: list[float] = []
        async for _ in engine.generate(EngineRequest(f"paced-{number}", [1], Sampling(1000), "salt")):
            times_s.append(time.monotonic())
            end_s = time.monotonic() + 0.002  # what others do with the machine
            while time.monotonic() < end_s:
                pass
        return min(at_s - times_s[0] - step * 0.0084746 for step, at_s in list(enumerate(times_s))[-20:])

    tries_s = [await lateness_s(0)]
    while tries_s[-1] >= 0.02 and len(tries_s) < 10:
        tries_s.append(await lateness_s(len(tries_s)))
    assert tries_s[-1] < 0.02, "the lateness of a step is not added to the next one's"


async def test_without_an_interval_others_get_their_turn_at_each_step(staged: Staged) -> None:
    stage = staged([{"reply": [{"text": "abcdef"}]}])
    order: list[int] = []

    async def read(number: int) -> None:
        async for _ in stage.engine.generate(stage.request()):
            order.append(number)

    await asyncio.gather(read(0), read(1))
    assert [0, 1] * 7 == order


async def test_the_cache_simulation_gives_way_to_the_rules_figure(staged: Staged) -> None:
    stage = staged([{"when": {"contains": "x"}, "cached_tokens": 128, "reply": [{"text": "ab"}]}, OK])
    assert [128, 128, 128] == [delta.num_cached_tokens for delta in await stage.ask("short", hints=named("x"))]
    assert [0, 0, 0] == [delta.num_cached_tokens for delta in await stage.ask("a" * 200)]
    assert [192, 192, 192] == [delta.num_cached_tokens for delta in await stage.ask("a" * 200)]
    assert (405, 320) == (stage.engine.stats.num_prefix_queried_tokens, stage.engine.stats.num_prefix_hit_tokens)


async def test_the_next_turn_finds_prompt_and_answer(staged: Staged, vocabulary: ByteVocabulary) -> None:
    stage = staged([{"reply": [{"text": "b" * 100}]}])
    await stage.ask("a" * 100)
    turn = [*vocabulary.encode("a" * 100 + "b" * 100), vocabulary.control["<|end_of_msg|>"], *vocabulary.encode("c" * 100)]
    assert 192 == (await stage.ask(turn))[0].num_cached_tokens


async def test_speculation_counts_steps(staged: Staged) -> None:
    stage = staged([{"tokens_per_step": 4, "spec": {"draft": 7, "accepted": 3}, "reply": [{"text": "a" * 9}]}])
    deltas = await stage.ask()
    assert [None, None, Speculation(3, 21, 9)] == [delta.speculation for delta in deltas]
    stats = stage.engine.stats
    assert (3, 21, [3, 3, 3, 0, 0, 0, 0]) == (stats.num_drafts, stats.num_draft_tokens, stats.accepted_per_position)


async def test_without_a_figure_the_tokens_of_each_step_say_what_was_taken(staged: Staged) -> None:
    """The published 3.14 tokens a step are seven steps of 22 tokens."""
    stage = staged([{"tokens_per_step": [3, 3, 3, 3, 3, 3, 4], "spec": {"draft": 7}, "reply": [{"text": "a" * 219}]}])
    deltas = await stage.ask()
    assert [3, 3, 3, 3, 3, 3, 4] * 10 == [len(delta.token_ids) for delta in deltas]
    stats = stage.engine.stats
    assert (70, 490, [70, 70, 10, 0, 0, 0, 0]) == (stats.num_drafts, stats.num_draft_tokens, stats.accepted_per_position)
    assert Speculation(70, 490, 150) == deltas[-1].speculation


async def test_a_request_and_its_end_are_recorded(staged: Staged) -> None:
    stage = staged([{"reply": [{"text": "abc"}]}])

    shown = Shown()
    image = PlacedImage(Image(3, 2, "cafe", shown.pixels), start=0, num_tokens=2)
    sampling = {"max_tokens": 2, "logit_bias": {5: 1.5}, "stop_token_ids": (7,)}
    await stage.ask("hi", priority=4, grammar="{}", reasoning_ended=True, media=(image,), sampling=sampling, hints=named("hi"))
    (entry,) = json.loads(json.dumps(stage.engine.recorded()))["requests"]
    assert ([104, 105], "salt", 4, "{}", True) == tuple(
        entry[key] for key in ("token_ids", "cache_salt", "priority", "grammar", "reasoning_ended")
    )
    assert [{"content_hash": "cafe", "width": 3, "height": 2, "start": 0, "num_tokens": 2}] == entry["media"]
    assert (2, {"5": 1.5}, [7]) == tuple(entry["sampling"][key] for key in ("max_tokens", "logit_bias", "stop_token_ids"))
    assert ("length", 2, 0) == tuple(entry[key] for key in ("end", "num_generated_tokens", "rule"))
    facts = {"tenant": "", "model": "", "last_user_text": "hi", "last_role": "", "last_text": "", "num_tool_results": 0}
    assert facts == entry["hints"]
    assert (1, 1) == (shown.num_opened, shown.num_closed)


async def test_an_image_that_can_not_be_decoded_ends_its_request_alone(staged: Staged) -> None:
    stage = staged([OK])

    async def pixels() -> Pixels:
        raise MediaError("broken")

    with pytest.raises(MediaError, match="broken"):
        await stage.ask("hi", media=(PlacedImage(Image(3, 2, "cafe", pixels), start=0, num_tokens=2),))
    assert "ok<|end_of_msg|>" == await stage.text("again")
    first, _ = stage.engine.recorded()["requests"]
    assert ("invalid", []) == (first["end"], stage.engine.recorded()["aborts"])
    assert 0 == stage.engine.num_unfinished


async def test_aborts_are_recorded(staged: Staged) -> None:
    stage = staged([HANG])
    await stage.start(hints=named("hang"))
    generation = stage.engine.generate(stage.request(hints=named("hang")))
    await anext(generation)
    await generation.aclose()
    await stage.engine.abort("r1")
    await stage.engine.abort("nobody")
    await stage.settle()
    expected = [
        {"request_id": "r2", "cause": "closed", "known": True},
        {"request_id": "r1", "cause": "abort", "known": True},
        {"request_id": "nobody", "cause": "abort", "known": False},
    ]
    assert expected == stage.engine.recorded()["aborts"]
    assert ["abort", "closed"] == [entry["end"] for entry in stage.engine.recorded()["requests"]]


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"prompt": []}, InvalidRequestError, "empty"),
        ({"prompt": [1, 512]}, InvalidRequestError, "`512`"),
        ({"prompt": [1, -1]}, InvalidRequestError, "`-1`"),
        ({"prompt": [1] * 64}, ContextLengthError, "64 tokens .* context of 64"),
        ({"sampling": {"logit_bias": {600: 1.0}}}, InvalidRequestError, "`600`"),
        ({"sampling": {"max_tokens": 0}}, InvalidRequestError, "`max_tokens` is `0`"),
        ({"grammar": "{"}, InvalidRequestError, "grammar"),
        ({"request_id": "taken"}, InvalidRequestError, "`taken` is already running"),
    ],
)
async def test_what_is_refused(staged: Staged, given: dict[str, Any], error: type[InvalidRequestError], match: str) -> None:
    stage = staged([HANG, OK], context_length=64)
    await stage.start(request_id="taken", hints=named("hang"))
    with pytest.raises(error, match=match):
        await stage.ask(**given)
    assert 1 == stage.engine.num_unfinished
    assert "invalid" == stage.engine.recorded()["requests"][-1]["end"]


async def test_the_context_limits_the_answer(staged: Staged) -> None:
    stage = staged([{"reply": [{"text": "abcdef"}]}], context_length=64)
    deltas = await stage.ask([1] * 60)
    assert (4, "length") == (len(deltas), deltas[-1].finish_reason)


async def test_chats_are_rendered_by_a_fixed_template(staged: Staged) -> None:
    engine = staged().engine
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "<|open|>"}]}]
    assert list(b"system: Be kind.\nuser: <|open|>\nassistant: ") == await engine.render_chat(messages, (), {})
    calls = [{"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}]
    assert list(b'tools: [{"type": "function"}]\nassistant: [{"id": "a"}]\nassistant: ') == await engine.render_chat(
        calls, [{"type": "function"}], {}
    )
    with pytest.raises(InvalidRequestError) as caught:
        await engine.render_chat([{"role": "user", "content": [{"type": "image_url"}]}], (), {})
    assert "messages[0].content[0]" == caught.value.param


async def test_stats_of_an_idle_engine_are_zero_again(staged: Staged) -> None:
    stage = staged([OK], seats=4)
    await stage.start(hints=named("x"))
    stats = stage.engine.stats
    assert EngineStats(num_prefix_queried_tokens=6) == stats
    assert stats is stage.engine.stats
