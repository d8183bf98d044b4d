"""The prompt format of every other chat model: its own chat template, applied by the engine.

Role: one implementation of `base.PromptFormat`. Whether text that spells a control token stays text is the template's matter.
Invariant: the engine gets nothing but text, and no option that would change how it renders: a template is a program, and an
engine fetches the images that it is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, Protocol

from server.errors import InvalidRequestError
from server.prompts.base import Conversation, Prompt
from server.prompts.content import NUM_LONG_AT_ONCE, check_room, check_texts, is_long
from server.quoting import shown

_OPTIONS: Final = (
    "clear_thinking", "date_string", "enable_thinking", "preserve_thinking", "reasoning_effort", "thinking", "thinking_budget",
    "thinking_effort",
)  # fmt: skip
_MAX_OPTION_CHARS: Final = 100


class RenderChat(Protocol):
    """Prompt token ids by the model's own template, as `Engine.render_chat`."""

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any], /
    ) -> Awaitable[list[int]]: ...


class PlainFormat:
    """Has no channels: the answer starts as content, and every prompt token counts."""

    def __init__(self, render_chat: RenderChat, *, longest_piece: int, context_length: int) -> None:
        self._render_chat = render_chat
        self._longest_piece = longest_piece
        self._context_length = context_length
        self._turns = asyncio.Semaphore(NUM_LONG_AT_ONCE)

    async def render(self, conversation: Conversation, group: str = "") -> Prompt:
        _check_options(conversation.template_options)
        if not is_long(conversation):
            _check_messages(conversation.messages)
            return await self._ask(conversation)
        async with self._turns:
            await asyncio.to_thread(self._check_long, conversation)
            return await self._ask(conversation)

    async def _ask(self, conversation: Conversation) -> Prompt:
        return Prompt(await self._render_chat(conversation.messages, conversation.tools, conversation.template_options))

    def _check_long(self, conversation: Conversation) -> None:
        check_room(conversation.messages, self._longest_piece, self._context_length)
        _check_messages(conversation.messages)


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    for index, message in enumerate(messages):
        check_texts(message, f"messages[{index}]")
        if message.get("tools"):
            param = f"messages[{index}].tools"
            raise InvalidRequestError(f"`{param}` is set: this model takes tools in the request only", param=param)


def _check_options(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        param = f"chat_template_kwargs.{shown(name)}"
        if name not in _OPTIONS:
            known = ", ".join(f"`{option}`" for option in _OPTIONS)
            raise InvalidRequestError(f"`{param}` is not passed on to the model's template; these are: {known}", param=param)
        if not isinstance(value, str | int | float | None) or (isinstance(value, str) and len(value) > _MAX_OPTION_CHARS):
            raise InvalidRequestError(
                f"`{param}` is `{shown(value)}`; it must be a number, true, false, or at most {_MAX_OPTION_CHARS} characters",
                param=param,
            )
