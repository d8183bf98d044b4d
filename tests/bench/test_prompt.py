"""What `bench.prompt` sends are conversations that grow, and of those that are to be new nothing has been seen."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bench.conversations import Talk, body_of, num_turns_of
from bench.image_load import Streams
from bench.prompt import MAX_BLOCK_MS, MAX_NEXT_RATIO, MAX_P99_RATIO, _missed, _summary
from bench.prompt_load import Sender
from bench.prompt_servers import LetterEngine
from server.engine.base import EngineRequest, Sampling
from server.protocol import chat
from server.vocabulary.byte import ByteVocabulary
from tests.conftest import KEY, StartGateway

LETTERS = [{"step_interval_ms": 5, "reply": [{"repeat": {"times": 100_000, "of": [{"text": "x"}]}}]}]


def texts(messages: list[dict[str, Any]]) -> list[str]:
    found = [message[field] for message in messages for field in ("content", "reasoning_content") if message.get(field)]
    return found + [call["function"]["arguments"] for message in messages for call in message.get("tool_calls", ())]


def test_a_talk_grows_and_no_text_comes_twice() -> None:
    talk = Talk()
    short, long, other = talk.messages(3), talk.messages(4), talk.messages(4, "another")
    assert short == long[: len(short)]
    assert long[len(short) - 1 :] == [*talk.turn(3), talk.question(4)]
    assert talk.messages(4) == long == Talk().messages(4)
    seen = texts(long) + texts(other)
    assert len(seen) == len(set(seen))
    assert chat.parse(body_of(long)).messages == long


@pytest.mark.parametrize("num_tokens", [10_000, 100_000])
def test_a_talk_is_about_as_long_as_asked_for(num_tokens: int) -> None:
    num_chars = sum(map(len, texts(Talk().messages(num_turns_of(num_tokens)))))
    assert 4 * num_tokens < num_chars < 7 * num_tokens


async def test_the_sender_sends_both_kinds_beside_streams(start_gateway: StartGateway) -> None:
    port, streams = int(start_gateway(LETTERS).url.rpartition(":")[2]), Streams()
    await streams.open(port, KEY, 2, 0.01)
    sender = Sender(port, KEY, num_tokens=5000, rest_s=0)
    for kind in ("next", "cold"):
        sent = await asyncio.to_thread(sender.send, kind, 0.05)
        assert sent["num"] >= 1
        assert 0 < sent["least_s"] <= sent["median_s"]
    sender.close()
    async with asyncio.timeout(20):
        while len(streams.gaps_s) < 20:
            await asyncio.sleep(0.01)
    await streams.close()


async def test_the_letter_engine_says_as_many_letters_as_asked_for() -> None:
    engine = LetterEngine(ByteVocabulary(), 0.0)
    request = EngineRequest("r", [1, 2], Sampling(max_tokens=3), "salt")
    deltas = [delta async for delta in engine.generate(request)]
    assert ([(ord("x"),)] * 3, "length", 0) == ([of.token_ids for of in deltas], deltas[-1].finish_reason, engine.num_unfinished)


def figures(**given: float) -> dict[str, Any]:
    names = ("p50_ms", "p99_ms", "max_ms", "block_ms", "block_wall_ms", "load_average")
    return {**dict.fromkeys(names, 10.0), **given}


@pytest.mark.parametrize(
    ("ratio", "block_ms", "p99_ms", "num_missed"),
    [
        (MAX_NEXT_RATIO, MAX_BLOCK_MS, 10 * MAX_P99_RATIO, 0),
        (MAX_NEXT_RATIO + 0.01, 1, 10, 1),
        (0, MAX_BLOCK_MS + 1, 10, 1),
        (0, 1, 10 * MAX_P99_RATIO + 1, 1),
    ],
)
def test_goals_that_are_missed_are_told(ratio: float, block_ms: float, p99_ms: float, num_missed: int) -> None:
    summary = _summary([{"alone": figures(), "next": figures(block_ms=block_ms, p99_ms=p99_ms)}])
    assert num_missed == len(_missed([{"ratio": 1.0}, {"ratio": ratio}], summary))
