"""The prompt formats by the names of the configuration."""

from __future__ import annotations

from server.prompts.base import PromptFormat
from server.prompts.kimi_k3 import KimiK3Format
from server.prompts.plain import PlainFormat, RenderChat
from server.vocabulary.base import Vocabulary


def make_format(name: str, vocabulary: Vocabulary, render_chat: RenderChat) -> PromptFormat:
    """The format `name`. Raises `ValueError` where the vocabulary lacks the control tokens that the format needs."""
    return PlainFormat(render_chat) if name == "plain" else KimiK3Format(vocabulary)
