from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.prompts.base import Conversation, Prompt
from server.prompts.plain import PlainFormat


async def test_the_engine_renders_everything() -> None:
    seen: list[Any] = []

    async def render_chat(
        messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[int]:
        seen.extend((messages, tools, options))
        return [1, 2, 3]

    messages, tools, options = [{"role": "user", "content": "x"}], [{"type": "function"}], {"enable_thinking": True}
    prompt = await PlainFormat(render_chat).render(Conversation(messages, tools, template_options=options))
    assert Prompt([1, 2, 3], num_stub_tokens=0, in_reasoning=False) == prompt
    assert [messages, tools, options] == seen


async def test_what_the_template_refuses_is_passed_on() -> None:
    async def render_chat(*_: Any) -> list[int]:
        raise InvalidRequestError("no system messages", param="messages[0]")

    with pytest.raises(InvalidRequestError, match="no system messages"):
        await PlainFormat(render_chat).render(Conversation([]))
