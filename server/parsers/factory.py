"""Parsers by the name of their format."""

from __future__ import annotations

from typing import Final

from server.parsers.base import ANYTHING, Expected, Parser
from server.parsers.kimi_k3 import KimiK3Parser
from server.parsers.plain import PlainParser
from server.parsers.token_text import TokenTexts
from server.vocabulary.base import Vocabulary

FORMATS: Final = ("kimi_k3", "plain")


class ParserFactory:
    """Makes the parsers of one format over one vocabulary. They share a table of its texts, which takes some 50 ms to build."""

    def __init__(self, format_name: str, vocabulary: Vocabulary) -> None:
        """Raises `ValueError` for a format that is none of `FORMATS`, or a vocabulary that lacks its control tokens."""
        if format_name not in FORMATS:
            raise ValueError(f"`{format_name}` is not a format: use one of {', '.join(FORMATS)}")
        self._is_plain = format_name == "plain"
        self._vocabulary = vocabulary
        self._texts = TokenTexts(vocabulary)
        self.make()  # a vocabulary that won't do is refused here

    def make(self, *, thinking: bool = False, expected: Expected = ANYTHING) -> Parser:
        """A parser for one answer, within microseconds. `thinking`: whether the answer begins inside the reasoning channel."""
        if self._is_plain:
            return PlainParser(self._vocabulary, self._texts.whole)
        return KimiK3Parser(self._vocabulary, self._texts, thinking=thinking, expected=expected)
