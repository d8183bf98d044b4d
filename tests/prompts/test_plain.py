from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from server.errors import ContextLengthError, InvalidRequestError
from server.prompts.base import Conversation, Prompt
from server.prompts.plain import PlainFormat, RenderChat

USER = {"role": "user", "content": "x"}
LONG = {"role": "user", "content": "x" * 40_000}
IMAGE = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}}


def plain(render_chat: RenderChat, context_length: int = 100_000) -> PlainFormat:
    return PlainFormat(render_chat, longest_piece=4, context_length=context_length)


async def no_engine(*_: Any) -> list[int]:
    raise AssertionError("the engine was asked")


async def refusal(conversation: Conversation) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        await plain(no_engine).render(conversation)
    return caught.value


async def test_the_engine_renders_everything() -> None:
    seen: list[Any] = []

    async def render_chat(
        messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[int]:
        seen.extend((messages, tools, options))
        return [1, 2, 3]

    messages, tools, options = [USER], [{"type": "function"}], {"enable_thinking": True}
    prompt = await plain(render_chat).render(Conversation(messages, tools, template_options=options))
    assert Prompt([1, 2, 3], num_stub_tokens=0, in_reasoning=False) == prompt
    assert [messages, tools, options] == seen


async def test_what_the_template_refuses_is_passed_on() -> None:
    async def render_chat(*_: Any) -> list[int]:
        raise InvalidRequestError("no system messages", param="messages[0]")

    with pytest.raises(InvalidRequestError, match="no system messages"):
        await plain(render_chat).render(Conversation([]))


@pytest.mark.parametrize("others", [[], [LONG]], ids=["short", "long"])
async def test_nothing_but_text_reaches_the_engine(others: list[Any]) -> None:
    parts = [{"type": "text", "text": "What is this?"}, IMAGE]
    error = await refusal(Conversation([USER, {"role": "user", "content": parts}, *others]))
    assert ("messages[1].content[1]", "`image_url` parts are not supported: this model takes text only") == (
        error.param,
        error.message,
    )


@pytest.mark.parametrize(
    "name", ["chat_template", "tools", "messages", "tokenize", "add_generation_prompt", "continue_final_message", "x" * 10_000]
)
async def test_no_option_changes_how_the_template_is_applied(name: str) -> None:
    error = await refusal(Conversation([USER], template_options={name: True}))
    assert str(error.param).startswith(f"chat_template_kwargs.{name[:20]}")
    assert "`enable_thinking`" in error.message
    assert len(error.message) < 500


@pytest.mark.parametrize("value", [{}, [1], {"__class__": 1}, "x" * 101])
async def test_options_are_plain_values(value: Any) -> None:
    error = await refusal(Conversation([USER], template_options={"enable_thinking": value}))
    assert "chat_template_kwargs.enable_thinking" == error.param


async def test_tools_of_a_message_do_not_vanish() -> None:
    error = await refusal(Conversation([{"role": "system", "tools": [{"type": "function"}]}, USER]))
    assert "messages[0].tools" == error.param


async def test_what_can_not_fit_never_reaches_the_engine() -> None:
    with pytest.raises(ContextLengthError, match="have 10000 tokens or more, the context has 10000;"):
        await plain(no_engine, context_length=10_000).render(Conversation([LONG]))


async def test_no_more_than_two_long_prompts_are_rendered_at_once() -> None:
    running, most = 0, 0

    async def render_chat(*_: Any) -> list[int]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return [1]

    kimi = plain(render_chat)
    await asyncio.gather(*(kimi.render(Conversation([LONG])) for _ in range(6)))
    assert most <= 2
    await asyncio.gather(*(kimi.render(Conversation([USER])) for _ in range(6)))
    assert 6 == most
