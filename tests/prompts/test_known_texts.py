"""Prompts made with the token ids of earlier texts are the prompts made without, and nobody learns from them what others sent."""

from __future__ import annotations

import asyncio
import random
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from server.errors import ContextLengthError, InvalidRequestError
from server.prompts import segments
from server.prompts.base import Conversation, Prompt
from server.prompts.kimi_k3 import KimiK3Format
from server.prompts.known_texts import ENTRY_BYTES, MIN_CHARS, TOKEN_BYTES, KnownTexts
from server.prompts.segments import SegmentEncoder
from server.vocabulary.base import Vocabulary
from server.vocabulary.byte import ByteVocabulary
from tests.prompts.soup import Author, soup
from tests.prompts.test_images import RULE, with_images

NUM_CASES = 24
"""Of each vocabulary; each is rendered some twenty times."""

MUCH = 1 << 24


def wordy(rng: random.Random) -> str:
    """As `soup`, sometimes long, and often what was there before."""
    if rng.random() < 0.3:
        return f"{rng.randrange(3)} is the number of this text, which comes again and again and is long enough to be remembered"
    return soup(rng) * rng.choice((1, 1, 1, 40))


def changed(conversation: Conversation, rng: random.Random) -> Conversation:
    """`conversation` with one thing different."""
    messages = [dict(message) for message in conversation.messages]
    kind = rng.randrange(6)
    if kind == 0:
        return replace(conversation, thinking=not conversation.thinking)
    if kind == 1:
        return replace(conversation, tools=conversation.tools[::-1])
    if kind == 2:
        return replace(conversation, effort=rng.choice(("low", "high", "max")))
    number = rng.randrange(len(messages))
    if kind == 3:
        messages[number]["name"] = wordy(rng)
    elif kind == 4 and not messages[number].get("tools"):
        messages[number]["content"] = wordy(rng)
    elif kind == 5:
        messages.insert(number, {"role": "user", "content": wordy(rng)})
    return replace(conversation, messages=messages)


async def rendered(kimi: KimiK3Format, conversation: Conversation, group: str = "") -> Prompt | str:
    """The prompt, or what is wrong."""
    try:
        return await kimi.render(conversation, group)
    except InvalidRequestError as error:
        return f"{error.param}: {error.message}"


def versions(seed: int) -> Iterator[Conversation]:
    """A conversation as it grows, and after edits."""
    rng = random.Random(seed)
    whole = Author(seed, wordy).conversation
    for length in range(1, len(whole.messages) + 1):
        yield replace(whole, messages=whole.messages[:length])
    for _ in range(4):
        whole = changed(whole, rng)
        yield whole


@pytest.mark.parametrize("min_chars", [1, MIN_CHARS])
@pytest.mark.parametrize("room", [3000, MUCH], ids=["cramped", "roomy"])
async def test_a_prompt_does_not_depend_on_what_is_known(
    vocabulary: Vocabulary, min_chars: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MIN_CHARS", min_chars)
    await compare(vocabulary, room, range(NUM_CASES))


@pytest.mark.long
async def test_a_prompt_never_depends_on_what_is_known(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MIN_CHARS", 1)
    await compare(vocabulary, 3000, range(1000, 2000))


async def compare(vocabulary: Vocabulary, room: int, seeds: range) -> None:
    plain, knowing = KimiK3Format(vocabulary), KimiK3Format(vocabulary, known_texts_bytes=room)
    for seed in seeds:
        for conversation in versions(seed):
            expected = await rendered(plain, conversation)
            assert expected == await rendered(knowing, conversation, f"group {seed % 3}"), seed
            assert expected == await rendered(knowing, conversation, f"group {seed % 3}"), seed


async def test_images_do_not_depend_on_what_is_known(k3: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MIN_CHARS", 1)
    plain, knowing = KimiK3Format(k3, image_rule=RULE), KimiK3Format(k3, image_rule=RULE, known_texts_bytes=MUCH)
    for seed in range(NUM_CASES):
        for conversation in with_images(seed):
            for _ in range(2):
                assert await rendered(plain, conversation) == await rendered(knowing, conversation, "group"), seed


def long_talk(seed: int, num_turns: int) -> list[dict[str, Any]]:
    """Turns of some kilobytes; conversations of different seeds share some."""
    messages: list[dict[str, Any]] = []
    for number in range(num_turns):
        rng = random.Random(f"{seed if number % 3 else 0} {number}")
        words = [soup(rng) for _ in range(150)]
        messages += [{"role": "user", "content": " ".join(words)}, {"role": "assistant", "content": " ".join(words[::-1])}]
    return messages


async def test_threads_that_render_at_once_agree(vocabulary: Vocabulary) -> None:
    plain, knowing = KimiK3Format(vocabulary), KimiK3Format(vocabulary, known_texts_bytes=400_000)
    talks = [Conversation(long_talk(seed, num_turns)) for seed in range(3) for num_turns in (12, 20, 21)]
    expected = [await plain.render(talk) for talk in talks]
    found = await asyncio.gather(*(knowing.render(talk, f"group {i % 2}") for talk in talks for i in range(3)))
    assert [prompt for prompt in expected for _ in range(3)] == found


class Counting(ByteVocabulary):
    """Counts the characters that it is given, and can be made to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.num_chars = 0
        self.started, self.gate = threading.Semaphore(0), threading.Event()
        self.gate.set()

    def encode(self, text: str, most: int | None = None) -> list[int]:
        self.num_chars += len(text)
        if len(text) > 1000:
            self.started.release()
            assert self.gate.wait(10)
        return super().encode(text, most)

    def take(self) -> int:
        num_chars, self.num_chars = self.num_chars, 0
        return num_chars


LONG = [{"role": "user", "content": "a long text, " * 4000}, {"role": "assistant", "content": "an answer, " * 400}]
NEXT = {"role": "user", "content": "and what is it that comes next, if I may ask that of you once more?"}


async def test_of_the_next_turn_only_what_is_new_is_encoded() -> None:
    vocabulary = Counting()
    kimi = KimiK3Format(vocabulary, known_texts_bytes=MUCH)
    vocabulary.take()
    await kimi.render(Conversation(LONG), "group")
    assert sum(len(message["content"]) for message in LONG) == vocabulary.take()
    await kimi.render(Conversation([*LONG, NEXT]), "group")
    assert len(NEXT["content"]) == vocabulary.take()
    await kimi.render(Conversation([NEXT, *LONG], thinking=False), "group")
    assert 0 == vocabulary.take()


@pytest.mark.parametrize("messages", [LONG, [{"role": "user", "content": "x" * 100}]], ids=["long", "short"])
async def test_one_group_gains_nothing_of_what_another_has_sent(messages: list[dict[str, Any]]) -> None:
    vocabulary = Counting()
    kimi = KimiK3Format(vocabulary, known_texts_bytes=MUCH)
    vocabulary.take()
    await kimi.render(Conversation(messages), "group")
    cold = vocabulary.take()
    await kimi.render(Conversation(messages), "another")
    assert cold == vocabulary.take()
    for nobody in range(2):
        await kimi.render(Conversation(messages))
        assert cold == vocabulary.take(), nobody
    await kimi.render(Conversation(messages), "group")
    assert 0 == vocabulary.take()


async def test_nothing_is_kept_where_nothing_may_be() -> None:
    vocabulary = Counting()
    kimi = KimiK3Format(vocabulary, known_texts_bytes=0)
    vocabulary.take()
    for _ in range(2):
        await kimi.render(Conversation(LONG), "group")
        assert 0 < vocabulary.take()


async def test_a_client_that_leaves_does_no_harm() -> None:
    vocabulary = Counting()
    kimi = KimiK3Format(vocabulary, known_texts_bytes=MUCH)
    expected = await KimiK3Format(ByteVocabulary()).render(Conversation([*LONG, NEXT]))
    vocabulary.gate.clear()
    leaving = [asyncio.ensure_future(kimi.render(Conversation(LONG), "group")) for _ in range(2)]
    assert await asyncio.to_thread(vocabulary.started.acquire, timeout=10)
    for task in leaving:
        task.cancel()
    await asyncio.wait(leaving)
    staying = asyncio.ensure_future(kimi.render(Conversation([*LONG, NEXT]), "group"))
    vocabulary.gate.set()
    assert expected == await staying
    assert expected == await kimi.render(Conversation([*LONG, NEXT]), "group")


def test_what_was_cut_off_is_not_kept() -> None:
    vocabulary, known = ByteVocabulary(), KnownTexts(MUCH)
    encoder = SegmentEncoder(vocabulary, (), ())
    text = "too long for this context " * 100
    for _ in range(2):
        with pytest.raises(ContextLengthError):
            encoder.encode([text], 1000, known.of("group"))
        assert 0 == known.num_bytes
    assert vocabulary.encode(text) == encoder.encode([text], MUCH, known.of("group"))
    assert 0 < known.num_bytes
    with pytest.raises(ContextLengthError):
        encoder.encode([text], 1000, known.of("group"))


def test_a_group_without_a_name_keeps_nothing() -> None:
    assert KnownTexts(MUCH).of("") is None
    assert KnownTexts(0).of("group") is None


def test_texts_that_differ_in_anything_have_different_digests() -> None:
    texts = KnownTexts(MUCH).of("group")
    assert texts is not None
    different = [
        "",
        " ",
        "x",
        "x ",
        "?",
        "\ud83d",
        "\udc00",
        "\ufffd",
        "\ud83d\ude00",
        "😀",
        "é",
        "e\u0301",
        "\x00",
        "x" * 4000,
        "x" * 4001,
    ]
    assert len(different) == len({texts.digest(text) for text in different})
    assert texts.digest("the same") == texts.digest("".join(["the ", "same"]))


def test_the_bound_holds_whatever_comes() -> None:
    rng = random.Random(5)
    known = KnownTexts(50_000)
    kept: dict[tuple[str, bytes], tuple[int, ...]] = {}
    num_found = 0
    for number in range(5000):
        name, digest = f"group {rng.randrange(rng.choice((2, 20)))}", rng.randrange(9).to_bytes(2, "big")
        found = known.get(name, digest)
        if found is not None:
            assert kept[name, digest] == found
            num_found += 1
            continue
        kept[name, digest] = (number,) * rng.choice((1, 10, 100, 2000, 4000))
        known.put(name, digest, kept[name, digest])
        assert known.num_bytes <= known.most_bytes
    assert num_found > 100
    left = [(name, digest) for name, digest in kept if known.get(name, digest) is not None]
    assert known.num_bytes == sum(ENTRY_BYTES + TOKEN_BYTES * len(kept[entry]) for entry in left)


def test_what_is_used_stays() -> None:
    known = KnownTexts(10 * (ENTRY_BYTES + TOKEN_BYTES))
    for number in range(100):
        known.put("group", bytes([number]), (number,))
        assert known.get("group", bytes([0])) == (0,)
    assert [number for number in range(100) if known.get("group", bytes([number]))] == [0, *range(91, 100)]


def test_a_flood_of_one_group_leaves_the_others_alone() -> None:
    known = KnownTexts(20_000)
    for number in range(10):
        known.put("modest", bytes([number]), (number,))
    for number in range(1000):
        known.put("greedy", number.to_bytes(2, "big"), (number,) * 50)
    assert all(known.get("modest", bytes([number])) for number in range(10))
    assert known.get("greedy", (999).to_bytes(2, "big"))


def test_what_takes_most_of_the_room_is_not_kept() -> None:
    known = KnownTexts(10_000)
    known.put("group", b"small", (1,))
    known.put("group", b"large", (1,) * 1000)
    assert known.get("group", b"small") == (1,)
    assert known.get("group", b"large") is None


class HighIds(ByteVocabulary):
    """Ids above those that Python has one object of anyway."""

    def encode(self, text: str, most: int | None = None) -> list[int]:
        return [256 + token_id % 200 for token_id in super().encode(text, most)]


@pytest.mark.parametrize("num_chars", [64, 300, 5000])
def test_entries_take_no_more_memory_than_is_counted(num_chars: int) -> None:
    known, encoder = KnownTexts(1 << 30), SegmentEncoder(HighIds(), (), ())
    texts = [f"{number:06}{'x' * (num_chars - 6)}" for number in range(600_000 // (num_chars + 40))]
    tracemalloc.start()
    try:
        for text in texts:
            encoder.encode([text], MUCH, known.of("group"))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken <= known.num_bytes <= 2 * taken
