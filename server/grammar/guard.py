"""Keeping control tokens out of text that is matched by its characters.

Role: the grammar engine matches a token by its text where characters are due, control tokens, too: `"[^"]*"` would take the token
`<|close|>`. So no path over characters may spell the beginning of a control token's name.
Invariant: the first character of such a name, where the second may follow, is matched as the ordinary token that is only this
character, by its id. Everything can still be written, and control tokens can't.
"""

from __future__ import annotations

from typing import Final

from server.grammar import characters
from server.grammar.characters import CharSet
from server.vocabulary.base import Vocabulary

_JSON_AFTER_BRACKET: Final = '"{[]-0123456789tfn'


class Guard:
    """What must be watched in one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises `ValueError` where the first character of a control token's name is no token of its own."""
        self._seconds: dict[str, str] = {}
        for name in vocabulary.control:
            self._seconds[name[:1]] = self._seconds.get(name[:1], "") + name[1:2]
        self._tokens: dict[str, int] = {}
        for first in self._seconds:
            token_ids = vocabulary.encode(first)
            if len(token_ids) != 1:
                raise ValueError(f"`{first}` begins a control token's name and is no token of its own")
            self._tokens[first] = token_ids[0]
        self.firsts: CharSet = characters.of("".join(self._seconds))
        """The characters that names begin with."""
        self._open_bracket = not set(self._seconds.get("[", "")) & set(_JSON_AFTER_BRACKET)

    def token_of(self, first: str) -> int:
        """The ordinary token that is this one of `firsts`."""
        return self._tokens[first]

    def safe_after(self, first: str) -> CharSet:
        """Characters that may follow this one of `firsts` by their character."""
        return characters.complement(characters.union(characters.of(self._seconds[first]), self.firsts))

    def parts(self, text: str, *, syntax: bool = False) -> list[str | int]:
        """`text` as stretches that are matched by their characters, and ordinary tokens that are matched by their id.

        `syntax`: the text is punctuation of JSON, so a bracket at its end is followed by what JSON allows there.
        """
        parts: list[str | int] = []
        begin = 0
        for position, character in enumerate(text):
            seconds = self._seconds.get(character)
            if seconds is None:
                continue
            following = text[position + 1 : position + 2]
            harmless = syntax and character == "[" and self._open_bracket
            if harmless if not following else following not in seconds:
                continue
            if begin < position:
                parts.append(text[begin:position])
            parts.append(self._tokens[character])
            begin = position + 1
        if begin < len(text):
            parts.append(text[begin:])
        return parts
