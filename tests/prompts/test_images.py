"""Images in a prompt: the trained tokens, where the client put them, in every role; what clients type stays text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from server.errors import ContextLengthError, InvalidRequestError
from server.images import Image, ImageRule, Pixels
from server.prompts.base import Conversation, Prompt
from server.prompts.kimi_k3 import KimiK3Format
from server.vocabulary.base import Vocabulary
from server.vocabulary.byte import ByteVocabulary
from server.vocabulary.tiktoken_file import KimiVocabulary
from tests.prompts.soup import Author, soup

BEGIN, CONTENT, END, PAD = 163602, 163603, 163604, 163605
MEDIA = ("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>")
RULE = ImageRule()
NUM_CASES = 150
TYPED = (*MEDIA, "<|kimi_image_placeholder|>", "<|media_begin|>image 28x28<|media_content|><|media_pad|><|media_end|>")


def image(width: int, height: int, content_hash: str = "00") -> Image:
    async def pixels() -> Pixels:
        raise AssertionError("rendering looks at no pixels")

    return Image(width, height, content_hash, pixels)


def part(url: str = "http://h/x.png") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def text(of: str) -> dict[str, str]:
    return {"type": "text", "text": of}


def block(vocabulary: Vocabulary, width: int, height: int) -> list[int]:
    begin, content, pad, end = (vocabulary.control[name] for name in MEDIA)
    pads = [pad] * RULE.num_tokens(width, height)
    return [begin, *vocabulary.encode(f"image {width}x{height}"), content, *pads, end]


@pytest.fixture(scope="module", params=["k3", "byte"])
def sighted(request: pytest.FixtureRequest) -> tuple[KimiK3Format, Vocabulary]:
    vocabulary = ByteVocabulary() if request.param == "byte" else request.getfixturevalue("k3")
    return KimiK3Format(vocabulary, image_rule=RULE), vocabulary


async def test_an_image_is_the_trained_tokens(k3: KimiVocabulary) -> None:
    conversation = Conversation(
        [{"role": "user", "content": [text("see"), part(), text("?")]}],
        thinking=False,
        images={"messages[0].content[1]": image(100, 57)},
    )
    prompt = await KimiK3Format(k3, image_rule=RULE).render(conversation)
    body = [*k3.encode("see"), BEGIN, *k3.encode("image 100x57"), CONTENT, *[PAD] * 12, END, *k3.encode("?")]
    head, tail = [163587, 2778, 6244, 878, 2482, 1, 163589], [163588, 2778, 163589, 163586]
    assert [*head, *body, *tail] == prompt.token_ids[: len(head) + len(body) + len(tail)]
    (placed,) = prompt.images
    assert (8, 12 + 3 + len(k3.encode("image 100x57"))) == (placed.start, placed.num_tokens)


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize("thinking", [False, True])
async def test_every_role_may_have_one(sighted: tuple[KimiK3Format, Vocabulary], role: str, thinking: bool) -> None:
    kimi, vocabulary = sighted
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    before = [{"role": "assistant", "content": "", "tool_calls": [call]}] if role == "tool" else []
    message = {"role": role, "content": [part()], "tool_call_id": "c"}
    path = f"messages[{len(before)}].content[0]"
    prompt = await kimi.render(Conversation([*before, message], thinking=thinking, images={path: image(28, 29)}))
    (placed,) = prompt.images
    assert block(vocabulary, 28, 29) == prompt.token_ids[placed.start : placed.start + placed.num_tokens]


async def test_images_of_tool_results_come_in_the_order_of_the_calls(sighted: tuple[KimiK3Format, Vocabulary]) -> None:
    kimi, _ = sighted
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": ""}} for name in ("a", "b")]
    messages = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "b", "content": [part()]},
        {"role": "tool", "tool_call_id": "a", "content": [part()]},
    ]
    images = {"messages[1].content[0]": image(28, 28, "b"), "messages[2].content[0]": image(56, 56, "a")}
    prompt = await kimi.render(Conversation(messages, images=images))
    assert ["a", "b"] == [placed.image.content_hash for placed in prompt.images]


def with_images(seed: int) -> tuple[Conversation, Conversation]:
    """A conversation of texts that spell markup, images and typed media markup strewn in; and the same without the images."""
    rng = random.Random(seed)
    conversation = Author(seed, soup).conversation
    images: dict[str, Image] = {}
    seen: list[dict[str, Any]] = []
    for number, message in enumerate(conversation.messages):
        content = message.get("content")
        parts: list[dict[str, Any]] = []
        for old in [*([text(content)] if isinstance(content, str) and content else content or ()), None]:
            while not message.get("tools") and rng.random() < 0.4:
                if rng.random() < 0.5:
                    parts.append(text(rng.choice(TYPED)))
                    continue
                images[f"messages[{number}].content[{len(parts)}]"] = image(rng.randint(1, 200), rng.randint(1, 200))
                parts.append(part())
            if old is not None:
                parts.append(old)
        seen.append({**message, "content": parts} if parts else dict(message))
    blind = [
        {**message, "content": [entry for entry in message["content"] if entry["type"] == "text"]}
        if message.get("content")
        else message
        for message in seen
    ]
    return replace(conversation, messages=seen, images=images), replace(conversation, messages=blind)


def without(prompt: Prompt) -> Sequence[int]:
    """The prompt's tokens, its images cut out."""
    token_ids = list(prompt.token_ids)
    for placed in reversed(prompt.images):
        del token_ids[placed.start : placed.start + placed.num_tokens]
    return token_ids


async def test_images_change_nothing_around_them(sighted: tuple[KimiK3Format, Vocabulary]) -> None:
    kimi, vocabulary = sighted
    media = {vocabulary.control[name] for name in MEDIA}
    num_images = 0
    for seed in range(NUM_CASES):
        seeing, blind = with_images(seed)
        prompt, expected = await kimi.render(seeing), await kimi.render(blind)
        assert expected.token_ids == without(prompt), seed
        assert not media.intersection(expected.token_ids), seed
        assert len(seeing.images) == len(prompt.images)
        for placed in prompt.images:
            found = prompt.token_ids[placed.start : placed.start + placed.num_tokens]
            assert block(vocabulary, placed.image.width, placed.image.height) == found
        num_images += len(prompt.images)
    assert num_images > NUM_CASES


async def test_a_model_without_images_says_which_part_it_can_not_see() -> None:
    conversation = Conversation(
        [{"role": "user", "content": [text("a"), part()]}], images={"messages[0].content[1]": image(1, 1)}
    )
    with pytest.raises(InvalidRequestError, match="text only") as caught:
        await KimiK3Format(ByteVocabulary()).render(conversation)
    assert "messages[0].content[1]" == caught.value.param


async def test_images_count_against_the_context(k3: KimiVocabulary) -> None:
    kimi = KimiK3Format(k3, 16_000, RULE)
    conversation = Conversation(
        [{"role": "user", "content": [text("x" * 40_000), part()]}], images={"messages[0].content[1]": image(4000, 4000)}
    )
    with pytest.raises(ContextLengthError, match="16000"):
        await kimi.render(conversation)
