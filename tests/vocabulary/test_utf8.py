from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.vocabulary.utf8 import Utf8Decoder, well_formed

SEEDED = settings(derandomize=True, deadline=None, max_examples=60)
# One of each kind of byte that the rules of UTF-8 tell apart.
KINDS = [0x41, 0x80, 0x90, 0xA0, 0xC1, 0xC2, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5]


def decode(pieces: list[bytes]) -> str:
    decoder = Utf8Decoder()
    return "".join([decoder.feed(piece) for piece in pieces]) + decoder.flush()


def test_every_sequence_at_every_split_point() -> None:
    for sequence in itertools.product(KINDS, repeat=4):
        data = bytes(sequence)
        expected = data.decode("utf-8", "replace")
        for at in range(5):
            assert expected == decode([data[:at], data[at:]]), (data, at)
        assert expected == decode([bytes([value]) for value in data]), data


@SEEDED
@given(pieces=st.lists(st.one_of(st.binary(max_size=6), st.text(max_size=4).map(str.encode))))
def test_any_pieces(pieces: list[bytes]) -> None:
    assert b"".join(pieces).decode("utf-8", "replace") == decode(pieces)


def test_a_character_is_held_back_until_it_is_whole() -> None:
    decoder = Utf8Decoder()
    assert ["a", "", "", "😀b"] == [decoder.feed(piece) for piece in (b"a\xf0", b"\x9f", b"\x98", b"\x80b")]
    assert b"" == decoder.pending


def test_what_is_held_back_can_be_seen_and_flushed() -> None:
    decoder = Utf8Decoder()
    decoder.feed(b"a\xf0\x9f\x98")
    assert b"\xf0\x9f\x98" == decoder.pending
    assert "\ufffd" == decoder.flush()
    assert "" == decoder.flush()
    assert "b" == decoder.feed(b"b")


@pytest.mark.parametrize(
    ("text", "expected"), [("a", "a"), ("\ud800", "\ufffd"), ("\ud83d\ude00\udc00", "😀\ufffd"), ("\ufeffa", "\ufeffa")]
)
def test_well_formed(text: str, expected: str) -> None:
    assert expected == well_formed(text)
