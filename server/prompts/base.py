"""From a conversation to token ids: the contract of a prompt format.

Role: step 4 of a request. A format renders what the model was trained to see.
Invariant: what a client or a tool wrote never becomes structure: it is encoded with control tokens switched off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from server.images import Image, PlacedImage
from server.protocol.reasoning import Effort


@dataclass(slots=True, frozen=True)
class Conversation:
    """What the model is to answer, free of any API's shape of options.

    `messages` and `tools` are in OpenAI's shape, already checked by `protocol/`. `tool_choice` is `auto`, `required` or `none` as
    the prompt tells it. `thinking` False means: answer without a reasoning channel. `effort` None means: say nothing about
    effort. `response_format` is OpenAI's object, or None for text. `template_options` are for formats that use the model's own
    template. `images`: path of each image part, as in `messages[0].content[1]` -> the image.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: Literal["auto", "required", "none"] = "auto"
    thinking: bool = True
    effort: Effort | None = "max"
    response_format: Mapping[str, Any] | None = None
    template_options: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, Image] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Prompt:
    """A rendered prompt.

    `token_ids`, shape (num_prompt_tokens,). `num_stub_tokens`: tokens at the end that open the channel the model writes in;
    hosted K3 does not count them in `usage.prompt_tokens`. `in_reasoning`: whether the answer starts in the reasoning channel.
    `is_continued`: whether the answer goes on with text that the client has written. `images`: in order, none over another.
    """

    token_ids: list[int]
    num_stub_tokens: int = 0
    in_reasoning: bool = False
    is_continued: bool = False
    images: tuple[PlacedImage, ...] = ()


class PromptFormat(Protocol):
    """Renders conversations for one family of models."""

    async def render(self, conversation: Conversation, group: str = "") -> Prompt:
        """The prompt of `conversation`, generation stub included. Raises `InvalidRequestError` with the field's path.

        `group`: a name that only the tenant's cache group has. What is kept to save work on later prompts is kept for it alone;
        without it, nothing is.
        """
        ...
