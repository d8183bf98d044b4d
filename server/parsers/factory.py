"""Parsers by the name of their format."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from server.parsers.base import Parser
from server.parsers.kimi_k3 import KimiK3Parser
from server.parsers.plain import PlainParser
from server.vocabulary.base import Vocabulary

FORMATS: Final = ("kimi_k3", "plain")


def make_parser(
    format_name: str, vocabulary: Vocabulary, *, thinking: bool = False, tool_names: Collection[str] | None = None
) -> Parser:
    """A parser for one answer of a model of format `format_name`.

    `thinking`: whether the answer begins inside the reasoning channel. `tool_names`: the declared tools, if known.
    The first parser of a vocabulary costs some 50 ms, the others microseconds: make one before serving. Raises `ValueError` for a
    format that is none of `FORMATS`, or a vocabulary that lacks its control tokens.
    """
    if format_name == "kimi_k3":
        return KimiK3Parser(vocabulary, thinking=thinking, tool_names=tool_names)
    if format_name == "plain":
        return PlainParser(vocabulary)
    raise ValueError(f"`{format_name}` is not a format: use one of {', '.join(FORMATS)}")
