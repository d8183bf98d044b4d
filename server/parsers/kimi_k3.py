"""Kimi K3's answers: token ids in, events out.

Role: step 7 of a request for models of the `kimi_k3` format. This file reads tokens as markers and text; `kimi_k3_message.py`
says what they mean, `kimi_k3_header.py` reads what a marker holds, `arguments.py` makes the JSON.
Invariant: a marker is a control token, the tokens of its header, and `<|sep|>`. The same characters in ordinary tokens are text
wherever text may stand; only between elements, where none may, are they understood as the marker that they spell. No control
token's name ever becomes text.
Must not: look at what was decoded before, or hold back more than a header, a broken character, or the beginning of a marker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from server.events import ContentDelta, Event, Finish, ReasoningDelta
from server.parsers.base import ANYTHING, Expected
from server.parsers.kimi_k3_header import SEPARATOR, Header
from server.parsers.kimi_k3_message import Message, Place
from server.parsers.recovery import Recoveries, Recovery
from server.parsers.token_text import TokenTexts
from server.vocabulary.base import Vocabulary
from server.vocabulary.utf8 import Utf8Decoder

_BLANKS: Final = b" \t\r\n"
_OPEN: Final = b"<|open|>"
_CLOSE: Final = b"<|close|>"
_END: Final = b"<|end_of_msg|>"
_SPELLED: Final = (_OPEN, _CLOSE, _END)
_THINK_OPENER: Final = b"<|open|>think<|sep|>"
_RESPONSE_OPENER: Final = b"<|open|>response<|sep|>"


class KimiK3Parser:
    """Reads one answer. `_flowing`: nothing stands between the next ordinary token and the body that it is text of."""

    __slots__ = ("_close", "_contents", "_control_ids", "_decoder", "_end", "_ended", "_flowing", "_fresh", "_header", "_held",
                 "_message", "_num_reasoning", "_open", "_openers", "_pending", "_pieces", "_reasonings", "_recoveries", "_sep",
                 "_texts", "_unread")  # fmt: skip

    def __init__(self, vocabulary: Vocabulary, texts: TokenTexts, *, thinking: bool, expected: Expected = ANYTHING) -> None:
        """`texts`: of `vocabulary`. `thinking`: whether the answer begins inside the reasoning channel.

        Raises `ValueError` for a vocabulary without K3's control tokens.
        """
        control = vocabulary.control
        try:
            self._open, self._close = control["<|open|>"], control["<|close|>"]
            self._sep, self._end = control["<|sep|>"], control["<|end_of_msg|>"]
        except KeyError as error:
            raise ValueError(f"the vocabulary has no control token `{error.args[0]}`: it is not one of Kimi K3") from None
        self._control_ids = vocabulary.control_ids
        self._pieces = vocabulary.pieces
        self._texts = texts.whole
        self._contents = texts.contents
        self._reasonings = texts.reasonings
        self._recoveries = Recoveries()
        self._message = Message(thinking=thinking, expected=expected, recoveries=self._recoveries)
        self._decoder = Utf8Decoder()
        self._pending = False  # the decoder holds the beginning of a character
        self._header: Header | None = None
        self._held = bytearray()  # the beginning of a spelled marker
        # What the model sometimes spells before all else: once more the prompt's last marker, or that it won't think.
        self._openers = (_THINK_OPENER, _RESPONSE_OPENER) if thinking else (_RESPONSE_OPENER,)
        self._fresh = True  # nothing but the beginning of one of these was read
        self._unread = 0  # ordinary tokens of which it is not known whether they are text
        self._num_reasoning = 0
        self._ended = False
        self._flowing = False

    @property
    def num_reasoning_tokens(self) -> int:
        return self._num_reasoning

    @property
    def recoveries(self) -> dict[str, int]:
        return self._recoveries.as_dict()

    def feed(self, token_ids: Sequence[int]) -> list[Event]:
        message, texts = self._message, self._texts
        if self._flowing and token_ids:
            if len(token_ids) == 1:
                if (text := texts.get(token_ids[0])) is not None:
                    return self._flow(token_ids[0], text)
            else:
                several = [text for token_id in token_ids if (text := texts.get(token_id)) is not None]
                if len(several) == len(token_ids):
                    return self._flow_on(several)
        for token_id in token_ids:
            if self._flowing and (text := texts.get(token_id)) is not None:
                if message.place is Place.THINK:
                    self._num_reasoning += 1
                message.text(text)
            else:
                self._read(token_id)
        return message.run.take()

    def _flow(self, token_id: int, text: str) -> list[Event]:
        """One token that is nothing but text of the open body; nearly all are."""
        message = self._message
        if message.place is Place.RESPONSE:
            return [self._contents[token_id]]
        if message.place is Place.THINK:
            self._num_reasoning += 1
            message.remember(text)
            return [self._reasonings[token_id]]
        return message.calls.fragments(text)

    def _flow_on(self, texts: Sequence[str]) -> list[Event]:
        """As `_flow`, of several."""
        message = self._message
        if message.place is Place.RESPONSE:
            return [ContentDelta("".join(texts))]
        if message.place is Place.THINK:
            self._num_reasoning += len(texts)
            for text in texts:
                message.remember(text)
            return [ReasoningDelta("".join(texts))]
        return message.calls.fragments("".join(texts))

    def finish(self, reason: str) -> list[Event]:
        self._flush_character()
        self._header = None
        if self._held and reason != "length":
            self._give_up_held()
        finish = self._message.finish(reason, ended=self._ended)
        self._message.run.add(Finish(finish))
        return self._message.run.take()

    # Tokens

    def _read(self, token_id: int) -> None:
        if token_id in self._control_ids:
            self._control(token_id)
        elif 0 <= token_id < len(self._pieces):
            self._unread += 1
            self._ordinary(self._pieces[token_id])
        else:
            self._recoveries.count(Recovery.STRAY_CONTROL)
        self._flowing = self._message.in_body and self._header is None and not self._pending and not self._fresh

    def _control(self, token_id: int) -> None:
        self._flush_character()
        if token_id == self._sep:
            self._separator()
        elif token_id in (self._open, self._close):
            self._break_header()
            self._give_up_held()
            self._header = Header(opening=token_id == self._open)
        elif token_id == self._end:
            self._break_header()
            self._ended = True
        else:
            self._recoveries.count(Recovery.STRAY_CONTROL)

    def _separator(self) -> None:
        header = self._header
        if header is None:
            if self._fresh and bytes(self._held) + SEPARATOR in self._openers:
                self._first_text(SEPARATOR)
            else:
                self._recoveries.count(Recovery.STRAY_CONTROL)
        elif not header.name:
            self._header = None
            self._recoveries.count(Recovery.BROKEN_MARKER)
        else:
            if header.spelled:
                self._recoveries.count(Recovery.SPELLED_MARKER)
            header.close()
            self._marker(header)

    def _ordinary(self, data: bytes) -> None:
        """Bytes of ordinary tokens."""
        if self._header is not None:
            self._in_header(self._header, data)
        elif self._fresh:
            self._first_text(data)
        elif self._message.in_body:
            self._text(data)
        else:
            self._between(data)

    def _text(self, data: bytes) -> None:
        if self._message.place is Place.THINK:
            self._num_reasoning += self._unread
        self._unread = 0
        text = self._decoder.feed(data)
        self._pending = bool(self._decoder.pending)
        if text:
            self._message.text(text)

    def _body_or_astray(self, data: bytes) -> None:
        """Bytes that turned out to spell no marker: text if there is a body for it."""
        self._fresh = False
        if self._message.in_body or self._message.begin_text(data[:1]):
            self._text(data)

    def _give_up_held(self) -> None:
        if self._held:
            held = bytes(self._held)
            self._held.clear()
            self._body_or_astray(held)

    def _flush_character(self) -> None:
        if self._pending:
            self._pending = False
            self._message.text(self._decoder.flush())

    # Markers

    def _in_header(self, header: Header, data: bytes) -> None:
        num_read = header.feed(data)
        if header.impossible:
            self._header = None
            self._recoveries.count(Recovery.BROKEN_MARKER)
            self._body_or_astray(header.spelled + header.text)
        elif header.ended:
            self._recoveries.count(Recovery.SPELLED_MARKER)
            self._marker(header)
            if num_read < len(data):
                self._ordinary(data[num_read:])

    def _marker(self, header: Header) -> None:
        self._header = None
        self._fresh = False
        self._unread = 0
        if header.opening:
            self._message.open(header.name, header.attributes)
        else:
            self._message.close(header.name)

    def _break_header(self) -> None:
        """Another control token came before the separator: a header that lacks nothing else is understood, any other dropped."""
        header = self._header
        if header is None:
            return
        self._header = None
        self._unread = 0
        if header.complete:
            self._recoveries.count(Recovery.MISSING_SEPARATOR)
            header.close()
            self._marker(header)
        else:
            self._recoveries.count(Recovery.BROKEN_MARKER)

    # Text that may spell a marker

    def _first_text(self, data: bytes) -> None:
        self._held += data
        held = bytes(self._held)
        if any(len(held) < len(opener) and opener.startswith(held) for opener in self._openers):
            return
        self._held.clear()
        self._fresh = False
        opener = next((opener for opener in self._openers if held.startswith(opener)), b"")
        if opener:
            self._recoveries.count(Recovery.SPELLED_MARKER)
            self._unread = 0
            self._message.open("think" if opener is _THINK_OPENER else "response", {})
        if held := held[len(opener) :]:
            self._ordinary(held)

    def _between(self, data: bytes) -> None:
        """Between elements: blanks are dropped, spelled markers understood, other text is text astray."""
        held = self._held
        held += data
        while True:
            del held[: len(held) - len(held.lstrip(_BLANKS))]
            spelled = next((marker for marker in _SPELLED if held.startswith(marker)), None)
            if spelled is not None:
                rest = bytes(held[len(spelled) :])
                held.clear()
                self._spelled(spelled, rest)
                return
            if not held or any(marker.startswith(held) for marker in _SPELLED):
                return
            if self._message.begin_text(bytes(held[:1])):
                rest = bytes(held)
                held.clear()
                self._text(rest)
                return
            next_marker = held.find(b"<", 1)
            del held[: next_marker if next_marker > 0 else len(held)]

    def _spelled(self, marker: bytes, rest: bytes) -> None:
        if marker == _END:
            self._recoveries.count(Recovery.SPELLED_MARKER)
            self._ended = True
        else:
            self._header = Header(opening=marker == _OPEN, spelled=marker)
        if rest:
            self._ordinary(rest)
