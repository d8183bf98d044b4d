"""The wire shape of a conversation: messages, their content, and the tool calls of earlier answers.

Role: as `chat.py`, which checks everything else. Messages stay plain dicts: their exact content is what the model is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, NotRequired, Required, TypedDict

from server.errors import InvalidRequestError
from server.protocol.tools import check_tools
from server.quoting import shown


class ImageUrl(TypedDict):
    """An image's address, or the image itself in a `data:` URL. `detail` means nothing here: the model sees each in full."""

    url: str
    detail: NotRequired[Literal["auto", "low", "high", "original"] | None]


class ContentPart(TypedDict, total=False):
    """One part of a message's content; `type` says which of the other fields it has."""

    type: Required[str]
    text: str
    image_url: str | ImageUrl | None


class FunctionCall(TypedDict):
    """A call in the history. `arguments` is JSON as text; an object is accepted, too."""

    name: str
    arguments: NotRequired[str | dict[str, Any] | None]


class ToolCall(TypedDict):
    """A tool call of an assistant message in the history."""

    id: NotRequired[str | None]
    type: NotRequired[Literal["function"]]
    function: FunctionCall


class Message(TypedDict, total=False):
    """One message of the conversation."""

    role: Required[Literal["system", "developer", "user", "assistant", "tool"]]
    content: str | list[ContentPart] | None
    name: str | None
    reasoning_content: str | None
    reasoning: str | None
    tool_calls: list[ToolCall] | None
    tool_call_id: str | None
    tools: list[dict[str, Any]] | None
    partial: bool | None


class ImageSource(NamedTuple):
    """Where an image comes from. `param`: the path of its part in the request."""

    param: str
    url: str


def image_sources(messages: Sequence[Message]) -> list[ImageSource]:
    """The images of checked messages, in order."""
    sources: list[ImageSource] = []
    for index, message in enumerate(messages):
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            image = part.get("image_url")
            if part["type"] == "image_url" and image is not None:
                url = image if isinstance(image, str) else image["url"]
                sources.append(ImageSource(f"messages[{index}].content[{number}]", url))
    return sources


def check_messages(messages: Sequence[Message], names: set[str]) -> None:
    """What a message of its role must and can't have. Raises `InvalidRequestError` with the field's path.

    `names`: of the tools declared so far; those that system messages declare are added.
    """
    if not messages:
        raise InvalidRequestError("`messages` is empty; send at least one message", param="messages")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message["role"]
        if role == "tool" and not message.get("tool_call_id"):
            raise InvalidRequestError(
                f"`{where}.tool_call_id` is missing; a tool message names the call it answers", param=f"{where}.tool_call_id"
            )
        if message.get("tool_calls") and role != "assistant":
            raise InvalidRequestError(
                f"`{where}.tool_calls` is set on a `{role}` message; only the assistant calls tools", param=f"{where}.tool_calls"
            )
        if message.get("tools") is not None:
            _check_declaration(message, where, names)
        content = message.get("content")
        if role == "user" and content is None:
            raise InvalidRequestError(f"`{where}.content` is missing; a user message has text", param=f"{where}.content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            _check_part(part, f"{where}.content[{number}]")


def _check_part(part: ContentPart, where: str) -> None:
    kind = part["type"]
    if kind not in ("text", "image_url"):
        raise InvalidRequestError(
            f"`{where}.type` is `{shown(kind)}`; parts of type `text` and `image_url` are taken", param=where
        )
    if kind == "text" and part.get("image_url") is not None:
        raise InvalidRequestError(
            f"`{where}` is a text with an `image_url`; send the image as a part of its own, of type `image_url`", param=where
        )
    if part.get(kind) is None:
        raise InvalidRequestError(f"`{where}.{kind}` is missing; a part of type `{kind}` has it", param=f"{where}.{kind}")


def _check_declaration(message: Message, where: str, names: set[str]) -> None:
    """A message with `tools` declares them and says nothing else: the model's format has no place for both."""
    if message["role"] not in ("system", "developer"):
        raise InvalidRequestError(
            f"`{where}.tools` is set on a `{message['role']}` message; declare tools in the request or in a system message",
            param=f"{where}.tools",
        )
    if message["tools"] and message.get("content"):
        raise InvalidRequestError(
            f"`{where}` has `content` and `tools`; the model is shown one of them: send two system messages",
            param=f"{where}.tools",
        )
    check_tools(message["tools"] or (), f"{where}.tools", names)
