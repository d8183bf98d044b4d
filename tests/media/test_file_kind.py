"""Files are called by their names, and headers are read as decoders read them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from server.media.file_kind import DECODED, header_size, kind_of
from tests.media.files import FORMATS, picture, read, saved


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"\xef\xbb\xbf <?xml version='1.0'?>\n<!-- a -->\n<svg\nwidth='1'>", "SVG"),
        (b"\n<!DOCTYPE HTML><p>", "HTML"),
        (b"<html lang=en>", "HTML"),
        (b"<?xml version='1.0'?><rss>", "XML"),
        (b"%PDF-1.7", "PDF"),
        (b'{"error": "no"}', "JSON"),
        (b"[1, 2]", "JSON"),
        (b"\x00\x00\x00\x1cftypheic\x00\x00", "HEIC"),
        (b"\x00\x00\x00\x1cftypavif\x00\x00", "AVIF"),
        (b"\x00\x00\x00\x1cftypisom\x00\x00", "a video"),
        (b"BM\x3a\x00", "BMP"),
        (b"II*\x00\x08", "TIFF"),
        (b"MM\x00*\x00", "TIFF"),
        (b"\xff\x0a\x00", "JPEG XL"),
        (b"PK\x03\x04", "a ZIP archive"),
        (b"iVBORw0KGgoAAAANSUhEUg", "base64, encoded twice"),
        (b"data:image/png;base64,", "a data URL inside of one"),
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", None),
        (b"hello", None),
        (b"{hello}", None),
        (b"", None),
        (b"\x00" * 64, None),
    ],
)
def test_files_that_are_not_decoded_have_names(head: bytes, kind: str | None) -> None:
    assert kind == kind_of(head)


@pytest.mark.parametrize(("format", "kind"), list(zip(FORMATS, DECODED, strict=True)))
def test_files_that_are_decoded_are_known(format: str, kind: str) -> None:
    assert kind == kind_of(saved(picture(), format))


@settings(deadline=None, max_examples=40)
@given(
    format=st.sampled_from(["PNG", "GIF", "WEBP"]),
    width=st.integers(1, 4000),
    height=st.integers(1, 40),
    is_lossless=st.booleans(),
    has_metadata=st.booleans(),
)
def test_the_size_in_the_header_is_the_one_decoders_see(
    format: str, width: int, height: int, is_lossless: bool, has_metadata: bool
) -> None:
    options = {"lossless": is_lossless, "quality": 10, "method": 0} if format == "WEBP" else {}
    if has_metadata and format == "WEBP":
        options["exif"] = b"Exif\x00\x00"  # makes it an extended file
    file = saved(Image.new("RGB", (width, height)), format, **options)

    assert read(file).size == (width, height) == header_size(file[:1024])


@given(st.binary(max_size=64), st.sampled_from([b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF0000WEBPVP8X", b"RIFF0000WEBPVP8L", b""]))
def test_a_header_that_is_none_has_no_size_or_any(head: bytes, magic: bytes) -> None:
    size = header_size(magic + head)

    assert size is None or all(0 <= side < 1 << 32 for side in size)
