"""Where a conversation stands when the model is asked: what its last messages say.

Role: facts for an engine that chooses its answers by them. The prompt is made of the messages themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.protocol.messages import Message


@dataclass(slots=True, frozen=True)
class Turn:
    """`user_text` is what the last user message says, `last_text` what the last message says, other kinds of content left out.

    `num_tool_results`: tool messages after the last user message, or all where there is none.
    """

    user_text: str
    last_role: str
    last_text: str
    num_tool_results: int


def turn_of(messages: Sequence[Message]) -> Turn:
    """Where `messages`, at least one and all checked, stand."""
    num_tool_results = 0
    user_text = ""
    for message in reversed(messages):
        if message["role"] == "user":
            user_text = _text(message)
            break
        num_tool_results += message["role"] == "tool"
    return Turn(user_text, messages[-1]["role"], _text(messages[-1]), num_tool_results)


def _text(message: Message) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
