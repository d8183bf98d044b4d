"""K3's structure as a script writes it: markers by name, whole elements by their parts.

Role: turns the words of a script's `control` lists into token ids; the scripted engine's polite reply is made with it too.
Invariant: only the four structural tokens come out as control tokens; tag names, attributes and values are ordinary tokens,
attributes in the same segments as a rendered prompt has them (name, `="`, value, `"`).
Source: Kimi K3's chat encoding, `encoding_k3.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from server.vocabulary.base import Vocabulary

STRUCTURAL = {name: f"<|{name}|>" for name in ("open", "close", "sep", "end_of_msg")}
_OPENERS = ("think", "response", "tools")
_CLOSERS = ("think", "response", "tools", "call", "argument", "message")
MARKERS = {f"<{tag}>": ("open", tag) for tag in _OPENERS} | {f"</{tag}>": ("close", tag) for tag in _CLOSERS}


class Markup:
    """Markers and elements of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @property
    def available(self) -> bool:
        """Whether the vocabulary has K3's structural tokens."""
        return all(name in self._vocabulary.control for name in STRUCTURAL.values())

    def word(self, name: str) -> list[int]:
        """Token ids of one word of a `control` list. Raises `ValueError` for a structural token that the vocabulary lacks.

        A structural token by its short name, a three-token marker by its shorthand, any control token by its full name; every
        other word is a tag name, in ordinary tokens.
        """
        if name in MARKERS:
            kind, tag = MARKERS[name]
            return [self._structural(kind), *self._vocabulary.encode(tag), self._structural("sep")]
        if name in STRUCTURAL:
            return [self._structural(name)]
        control_id = self._vocabulary.control.get(name)
        return [control_id] if control_id is not None else self._vocabulary.encode(name)

    def words(self, *names: str) -> list[int]:
        """Token ids of several words."""
        return [token_id for name in names for token_id in self.word(name)]

    def opener(self, tag: str, **attributes: str) -> list[int]:
        """Token ids of an opening marker with attributes, as in `<|open|>call tool="f" index="1"<|sep|>`."""
        encode = self._vocabulary.encode
        token_ids = [self._structural("open"), *encode(tag)]
        for name, value in attributes.items():
            escaped = value.replace("&", "&amp;").replace('"', "&quot;")
            for segment in (f" {name}", '="', escaped, '"'):
                token_ids += encode(segment)
        return [*token_ids, self._structural("sep")]

    def argument(self, key: str, kind: str, value: Any) -> list[int]:
        """Token ids of a whole argument. A `value` that is text is taken as it is, also where `kind` says otherwise."""
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return [*self.opener("argument", key=key, type=kind), *self._vocabulary.encode(text), *self.word("</argument>")]

    def opens(self, token_ids: Sequence[int], tag: str) -> bool:
        """Whether `token_ids`, the end of a prompt, opens channel `tag`."""
        marker = self.word(f"<{tag}>")
        return list(token_ids[-len(marker) :]) == marker

    def _structural(self, name: str) -> int:
        control_id = self._vocabulary.control.get(STRUCTURAL[name])
        if control_id is None:
            raise ValueError(f"this vocabulary has no `{STRUCTURAL[name]}`: write `text` or `ids`, or give K3's with `--vocab`")
        return control_id


def json_kind(value: Any) -> str:
    """K3's `type` attribute of a JSON value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
