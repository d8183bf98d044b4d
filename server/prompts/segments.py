"""A rendered prompt before it is token ids: pieces of text, each either a control token's name or ordinary text.

Role: between the pure rendering of a conversation and the vocabulary.
Invariant: every piece is encoded by itself, and only a `control` piece becomes a control token. So what a client wrote can
neither forge structure nor merge with the structure beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from server.vocabulary.base import Vocabulary


class Segment(NamedTuple):
    """`text` as it is, or, where `control`, the control token of that name."""

    text: str
    control: bool = False


def text_of(segments: Iterable[Segment]) -> str:
    """The segments as one text, for people and tests. Never encode it: it can't tell structure from quotation."""
    return "".join([segment.text for segment in segments])


class SegmentEncoder:
    """Turns segments into token ids. May be used from several threads at once."""

    def __init__(self, vocabulary: Vocabulary, control: Iterable[str], constants: Iterable[str]) -> None:
        """`control`: names of the control tokens that segments may use. `constants`: ordinary texts that come in every prompt.

        Raises `ValueError` where the vocabulary lacks one of the control tokens.
        """
        names = frozenset(control)
        if missing := sorted(names - vocabulary.control.keys()):
            raise ValueError(f"the vocabulary has no control tokens `{missing}`: use that of a model with this prompt format")
        self._encode = vocabulary.encode
        self._control = {name: vocabulary.control[name] for name in names}
        self._constants = {text: vocabulary.encode(text) for text in constants}

    def encode(self, segments: Iterable[Segment]) -> list[int]:
        """Token ids of `segments`, shape (num_tokens,)."""
        token_ids: list[int] = []
        for text, control in segments:
            if control:
                token_ids.append(self._control[text])
            else:
                token_ids += self._constants.get(text) or self._encode(text)
        return token_ids
