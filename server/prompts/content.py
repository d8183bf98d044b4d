"""The content of messages, and how much of it there is.

Role: shared by the prompt formats. Invariant: an address in a message is never passed on: an engine might fetch it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from server.errors import ContextLengthError, InvalidRequestError
from server.prompts.base import Conversation
from server.quoting import shown

NUM_LONG_AT_ONCE: Final = 2
"""Long conversations that one format renders at the same time; more would only keep each other, and the event loop, waiting."""

_LONG_CHARS: Final = 30_000
_MARKUP_CHARS: Final = 40
_IMAGE_CHARS: Final = 1000


def parts_of(message: Mapping[str, Any], param: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The parts of a message's content, each with its path; text alone is one part."""
    content = message.get("content")
    if isinstance(content, str):
        yield param, {"type": "text", "text": content}
    else:
        for number, part in enumerate(content or ()):
            yield f"{param}.content[{number}]", part


def check_texts(message: Mapping[str, Any], param: str) -> None:
    """Raise `InvalidRequestError` for parts that are not text."""
    for path, part in parts_of(message, param):
        if part["type"] != "text":
            raise InvalidRequestError(f"`{shown(part['type'])}` parts are not supported: this model takes text only", param=path)


def is_long(conversation: Conversation) -> bool:
    """Whether rendering takes milliseconds and belongs beside the event loop. Looks no further than it must."""
    left = _LONG_CHARS - _IMAGE_CHARS * len(conversation.images)
    pending: list[object] = [conversation.messages, conversation.tools, conversation.response_format]
    while pending and left > 0:
        value = pending.pop()
        if isinstance(value, str):
            left -= len(value)
        elif isinstance(value, dict):
            left -= _MARKUP_CHARS
            pending.extend(value.values())
        elif isinstance(value, list | tuple):
            pending.extend(value)
        left -= 1
    return left <= 0


def check_room(messages: Sequence[Mapping[str, Any]], longest_piece: int, context_length: int) -> None:
    """Raise `ContextLengthError` for what can't fit, before work is spent on it. `longest_piece`: bytes of the longest token."""
    num_chars = 0
    for message in messages:
        content = message.get("content") or ""
        num_chars += len(content) if isinstance(content, str) else sum(len(part.get("text") or "") for part in content)
    num_tokens = num_chars // max(1, longest_piece)
    if num_tokens >= context_length:
        raise ContextLengthError(
            f"the messages have {num_tokens} tokens or more, the context has {context_length}; "
            "the answer needs one at least; shorten the conversation",
            param="messages",
        )
