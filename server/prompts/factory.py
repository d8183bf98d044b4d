"""The prompt formats by the names of the configuration."""

from __future__ import annotations

from server.images import ImageRule
from server.prompts.base import PromptFormat
from server.prompts.kimi_k3 import KimiK3Format
from server.prompts.plain import PlainFormat, RenderChat
from server.vocabulary.base import Vocabulary


def make_format(
    name: str,
    vocabulary: Vocabulary,
    render_chat: RenderChat,
    context_length: int,
    image_rule: ImageRule | None = None,
    *,
    known_texts_bytes: int = 0,
) -> PromptFormat:
    """The format `name`, for prompts that leave room in a context; `image_rule` where the model sees images.

    `known_texts_bytes`: what may be kept of prompts for later ones, by formats that render themselves.

    Raises `ValueError` where the vocabulary lacks the control tokens that the format needs.
    """
    if name == "plain":
        return PlainFormat(render_chat, longest_piece=vocabulary.longest_piece, context_length=context_length)
    return KimiK3Format(vocabulary, context_length, image_rule, known_texts_bytes=known_texts_bytes)
