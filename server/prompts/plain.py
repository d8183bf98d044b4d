"""The prompt format of every other chat model: its own chat template, applied by the engine.

Role: one implementation of `base.PromptFormat`. Whether text that spells a control token stays text is the template's matter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from server.prompts.base import Conversation, Prompt


class RenderChat(Protocol):
    """Prompt token ids by the model's own template, as `Engine.render_chat`."""

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any], /
    ) -> Awaitable[list[int]]: ...


class PlainFormat:
    """Has no channels: the answer starts as content, and every prompt token counts."""

    def __init__(self, render_chat: RenderChat) -> None:
        self._render_chat = render_chat

    async def render(self, conversation: Conversation) -> Prompt:
        token_ids = await self._render_chat(conversation.messages, conversation.tools, conversation.template_options)
        return Prompt(token_ids)
