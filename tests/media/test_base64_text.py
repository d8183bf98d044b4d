"""Base64 is read as browsers read it, and what is none is said to be none."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.media.bad_image import BadImageError
from server.media.base64_text import decoded

SPACES = st.lists(st.tuples(st.integers(0, 400), st.sampled_from([b" ", b"\n", b"\r\n", b"\t", b"\f"])), max_size=6)


@given(data=st.binary(max_size=300), spaces=SPACES, is_padded=st.booleans())
def test_bytes_come_back_whatever_the_spaces_and_the_padding(
    data: bytes, spaces: list[tuple[int, bytes]], is_padded: bool
) -> None:
    text = base64.b64encode(data)
    text = text if is_padded else text.rstrip(b"=")
    for at, space in spaces:
        text = text[:at] + space + text[at:]

    assert data == decoded(text)


@given(text=st.text("AQaz09+/=- \n_%\x00é", max_size=24))
def test_a_text_is_read_as_whatwg_says_or_refused(text: str) -> None:
    stripped = "".join(character for character in text if character not in " \n")
    body = stripped
    if len(body) % 4 == 0:
        body = body.removesuffix("=").removesuffix("=")
    is_right = all(character in "AQaz09+/" for character in body) and len(body) % 4 != 1

    if is_right:
        assert base64.b64decode(body + "=" * (-len(body) % 4)) == decoded(text.encode())
    else:
        with pytest.raises(BadImageError):
            decoded(text.encode())


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"AAA-", "the base64 text has `-`, which does not belong there; encode the file's bytes with `+` and `/`"),
        (b"AA_A", "`-` and `_`"),
        (b"AA%3D", "has `%`"),
        (b"AA=AAAAA", "has `=` before its end"),
        (b"AAAA====", "has `=` before its end"),
        (b"AAAA=", "has `=` before its end"),
        (b"AAAA===", "has `=` before its end"),
        (b"=", "has `=` before its end"),
        (b"AA\x00A", "the byte `0x00`"),
        ("AAé".encode(), "the byte `0xc3`"),
        (b"AAAAA", "has `5` characters, which no file gives; send all of it"),
    ],
)
def test_what_is_wrong_is_named(text: bytes, what: str) -> None:
    with pytest.raises(BadImageError) as raised:
        decoded(text)

    assert what in str(raised.value)
