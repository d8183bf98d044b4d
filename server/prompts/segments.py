"""A rendered prompt before it is token ids: pieces of text, each either a control token's name or ordinary text.

Role: between the pure rendering of a conversation and the vocabulary.
Invariant: every piece is encoded by itself, and only a `control` piece becomes a control token. So what a client wrote can
neither forge structure nor merge with the structure beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

from server.errors import ContextLengthError
from server.vocabulary.base import Vocabulary


class Segment(NamedTuple):
    """`text` as it is, or, where `control`, the control token of that name, `times` times over."""

    text: str
    control: bool = False
    times: int = 1


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
        self._longest_constant = max(map(len, self._constants), default=0)

    def encode(self, segments: Iterable[Segment], context_length: int = sys.maxsize) -> list[int]:
        """Token ids of `segments`, shape (num_tokens,).

        Raises `ContextLengthError`, and looks no further, once they leave no room in the context.
        """
        token_ids: list[int] = []
        for text, control, times in segments:
            if control:
                token_ids += [self._control[text]] * times
            else:
                # Long texts are not looked up: that alone would read all of them.
                constant = self._constants.get(text) if len(text) <= self._longest_constant else None
                token_ids += constant or self._encode(text, context_length - len(token_ids))
            if len(token_ids) >= context_length:
                raise ContextLengthError(
                    f"the prompt has {len(token_ids)} tokens or more, the context has {context_length}; "
                    "the answer needs one at least; shorten the conversation",
                    param="messages",
                )
        return token_ids
