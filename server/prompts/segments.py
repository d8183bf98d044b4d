"""A rendered prompt before it is token ids: pieces of text, each either a control token's name or ordinary text.

Role: between the pure rendering of a conversation and the vocabulary.
Invariant: every piece is encoded by itself, and only a `control` piece becomes a control token. So what a client wrote can
neither forge structure nor merge with the structure beside it. For the same reason a text's token ids depend on nothing but the
text, whatever is around it: they are looked up where they are known.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from server.errors import ContextLengthError
from server.pauses import go_on
from server.prompts.known_texts import MIN_CHARS, GroupTexts
from server.vocabulary.base import Vocabulary

_PIECES_AT_ONCE: Final = 100
_IDS_AT_ONCE: Final = 16_384


class Segment(NamedTuple):
    """`text` as it is, or, where `control`, the control token of that name, `times` times over."""

    text: str
    control: bool = False
    times: int = 1


@dataclass(slots=True, frozen=True, eq=False)
class Run:
    """Segments that come together again and again, and have no word of a client's. There are few, made once."""

    segments: tuple[Segment, ...]


Piece = str | Run | Segment
"""A `str` is ordinary text, whatever it says."""


def segments_in(pieces: Iterable[Piece]) -> Iterator[Segment]:
    """`pieces`, one segment at a time."""
    for piece in pieces:
        if isinstance(piece, Run):
            yield from piece.segments
        else:
            yield Segment(piece) if isinstance(piece, str) else piece


class SegmentEncoder:
    """Turns pieces into token ids. May be used from several threads at once."""

    def __init__(
        self, vocabulary: Vocabulary, control: Iterable[str], constants: Iterable[str], runs: Iterable[Run] = ()
    ) -> None:
        """`control`: names of the control tokens that segments may use. `constants`: ordinary texts that come in every prompt.
        `runs`: all that may come.

        Raises `ValueError` where the vocabulary lacks one of the control tokens.
        """
        names = frozenset(control)
        if missing := sorted(names - vocabulary.control.keys()):
            raise ValueError(f"the vocabulary has no control tokens `{missing}`: use that of a model with this prompt format")
        self._encode = vocabulary.encode
        self._control = {name: vocabulary.control[name] for name in names}
        self._constants = {text: vocabulary.encode(text) for text in constants}
        self._longest_constant = max(map(len, self._constants), default=0)
        # One object for each id: a token of a prompt, or of a text that is kept, takes 8 bytes then, not 40.
        self._ids = list(range(vocabulary.size))
        self._runs: dict[Run, list[int]] = {}
        self._runs |= {run: self.encode(run.segments) for run in runs}

    def encode(
        self,
        pieces: Iterable[Piece],
        context_length: int = sys.maxsize,
        known: GroupTexts | None = None,
        pause: Callable[[], None] = go_on,
    ) -> list[int]:
        """Token ids of `pieces`, shape (num_tokens,).

        `known`: texts whose token ids are known; those that are not are added. `pause` is called every so often.
        Raises `ContextLengthError`, and looks no further, once they leave no room in the context.
        """
        token_ids: list[int] = []
        runs, constants = self._runs, self._constants
        for number, piece in enumerate(pieces, start=1):
            if not number % _PIECES_AT_ONCE:
                pause()
            if isinstance(piece, Run):
                token_ids += runs[piece]
                continue
            if isinstance(piece, str):
                # Long texts are not looked up here: that alone would read all of them.
                constant = constants.get(piece) if len(piece) <= self._longest_constant else None
                token_ids += constant or self._text(piece, context_length - len(token_ids), known, pause)
            elif piece.control:
                token_ids += [self._control[piece.text]] * piece.times
            else:
                token_ids += constants.get(piece.text) or self._encode(piece.text)
            if len(token_ids) >= context_length:
                raise ContextLengthError(
                    f"the prompt has {len(token_ids)} tokens or more, the context has {context_length}; "
                    "the answer needs one at least; shorten the conversation",
                    param="messages",
                )
        return token_ids

    def _text(self, text: str, room: int, known: GroupTexts | None, pause: Callable[[], None]) -> Sequence[int]:
        """Token ids of `text`; perhaps not all where there are more than `room`."""
        if known is None or len(text) < MIN_CHARS:
            return self._encode(text, room)
        digest = known.digest(text)
        if (found := known.get(digest)) is not None:
            return found
        encoded = self._encode(text, room)
        token_ids: list[int] = []
        for start in range(0, len(encoded), _IDS_AT_ONCE):
            token_ids += map(self._ids.__getitem__, encoded[start : start + _IDS_AT_ONCE])
            pause()
        whole = tuple(token_ids)
        if len(whole) <= room:  # else the end may be missing
            known.put(digest, whole)
        return whole
