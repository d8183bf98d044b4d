"""A byte-level BPE vocabulary from a `tokenizer.json`, as most open models ship it.

Role: one implementation of `base.Vocabulary`. Encoding is the `tokenizers` library's, given a copy of the file without its
`added_tokens`: that library turns the text `<|close|>` into the control token wherever it knows the token, so it must not know.
Must not: add tokens that a text does not have (the file's post-processor is dropped).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers

from server.vocabulary.pieces import PieceTable
from server.vocabulary.utf8 import well_formed

_REPLACEMENT: Final = "\ufffd"
_LONG_CHARS: Final = 4_000


class BpeVocabulary(PieceTable):
    """Every entry of `added_tokens` is a control token, whatever its `special` flag; all others are ordinary."""

    def __init__(self, specification: Mapping[str, Any]) -> None:
        """`specification`: the parsed `tokenizer.json`. Raises `ValueError` unless it is byte-level BPE."""
        if not _is_byte_level(specification):
            raise ValueError("only byte-level BPE is supported")
        control = {str(added["content"]): int(added["id"]) for added in specification.get("added_tokens") or ()}
        control_ids = frozenset(control.values())
        vocabulary: dict[str, int] = specification["model"]["vocab"]
        ordinary = {token: token_id for token, token_id in vocabulary.items() if token_id not in control_ids}
        super().__init__(_pieces(ordinary, control), control)
        self._bpe = _text_encoder(specification, ordinary)
        self._missing = _missing_bytes(ordinary)

    @classmethod
    def from_file(cls, path: Path) -> BpeVocabulary:
        """The vocabulary of a `tokenizer.json`. Raises `FileNotFoundError`, and `ValueError` for a file that is none."""
        try:
            return cls(json.loads(path.read_bytes()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"`{path}` is not a byte-level BPE tokenizer: {error}") from error

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """As in `Vocabulary`. Surrogate pairs are joined and lone surrogates read as U+FFFD. May be called from any thread.

        Characters with a byte that has no token, as some models have none for control characters, are read as U+FFFD, too.
        """
        text = self._beginning(text, most)
        try:
            data = text.encode()
        except UnicodeEncodeError:
            text = well_formed(text)
            data = text.encode()
        if self._missing and len(data.translate(None, self._missing)) < len(data):
            missing = frozenset(self._missing)
            text = "".join([char if missing.isdisjoint(char.encode()) else _REPLACEMENT for char in text])
        token_ids: list[int]
        if len(text) > _LONG_CHARS:
            # A batch of one: the library lets other threads run meanwhile, and notes no offsets.
            token_ids = self._bpe.encode_batch_fast([text], add_special_tokens=False)[0].ids
        else:
            token_ids = self._bpe.encode(text, add_special_tokens=False).ids
        return token_ids


def _is_byte_level(specification: Mapping[str, Any]) -> bool:
    decoder = specification.get("decoder") or {}
    decoders = decoder.get("decoders", [decoder])
    return specification["model"].get("type") == "BPE" and any(step.get("type") == "ByteLevel" for step in decoders)


def _text_encoder(specification: Mapping[str, Any], ordinary: Mapping[str, int]) -> tokenizers.Tokenizer:
    """An encoder that knows the ordinary tokens only, so that no text can become another one."""
    model = {**specification["model"], "vocab": ordinary, "unk_token": None}
    text_only = {**specification, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None, "model": model}
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(text_only))
    except Exception as error:  # noqa: BLE001  the library raises bare `Exception`
        raise ValueError(str(error)) from None


def _pieces(ordinary: Mapping[str, int], control: Mapping[str, int]) -> list[bytes]:
    """Token id -> its bytes. Ids that the file leaves out stand for nothing."""
    byte_of = _byte_of_character()
    pieces = [b""] * (max([*ordinary.values(), *control.values()], default=-1) + 1)
    for token, token_id in ordinary.items():
        pieces[token_id] = bytes([byte_of[character] for character in token])
    for name, token_id in control.items():
        pieces[token_id] = name.encode()
    return pieces


def _missing_bytes(ordinary: Mapping[str, int]) -> bytes:
    """The bytes that can't be encoded. Raises `ValueError` where even U+FFFD can't."""
    missing = bytes(value for character, value in _byte_of_character().items() if character not in ordinary)
    if set(missing) & set(_REPLACEMENT.encode()):
        raise ValueError("the bytes of U+FFFD have no tokens")
    return missing


def _byte_of_character() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for.

    Printable bytes of Latin-1 stand for themselves; all others, in order, are the characters from U+0100 on.
    Source: GPT-2's `bytes_to_unicode`.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [value for value in range(0x100) if value not in printable]
    return {chr(value): value for value in printable} | {chr(0x100 + index): value for index, value in enumerate(others)}
