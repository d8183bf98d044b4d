"""What a file is, by its first bytes, and how large an image it says it has.

Role: runs in the decoding process before a decoder sees the file, so that a size too large costs nothing, and so that what is no
image is called by its name. Imports only the standard library.
"""

from __future__ import annotations

import re
import struct
from typing import Final

HEAD_BYTES: Final = 1024
"""So much of a file tells what it is."""

DECODED: Final = ("PNG", "JPEG", "WebP", "GIF")
"""The kinds that are decoded, in the order in which messages list them."""

_MAGIC: Final = (
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (0, b"\xff\xd8\xff", "JPEG"),
    (8, b"WEBP", "WebP"),
    (0, b"GIF87a", "GIF"),
    (0, b"GIF89a", "GIF"),
    (0, b"%PDF", "PDF"),
    (0, b"BM", "BMP"),
    (0, b"II*\x00", "TIFF"),
    (0, b"MM\x00*", "TIFF"),
    (0, b"II+\x00", "TIFF"),
    (0, b"MM\x00+", "TIFF"),
    (0, b"\x00\x00\x01\x00", "an ICO icon"),
    (0, b"8BPS", "a Photoshop file"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"\x00\x00\x00\x0cJXL ", "JPEG XL"),
    (0, b"\x00\x00\x00\x0cjP  ", "JPEG 2000"),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
    (0, b"PK\x03\x04", "a ZIP archive"),
    (0, b"\x1f\x8b", "gzip"),
    (0, b"\x1aE\xdf\xa3", "a WebM or Matroska video"),
    (0, b"data:", "a data URL inside of one"),
    (0, b"iVBORw0KGgo", "base64, encoded twice"),
    (0, b"/9j/", "base64, encoded twice"),
    (0, b"UklGR", "base64, encoded twice"),
    (0, b"R0lGOD", "base64, encoded twice"),
)
_BRANDS: Final = {
    b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIC", b"heix": "HEIC", b"heim": "HEIC", b"heis": "HEIC", b"hevc": "HEIC",
    b"hevx": "HEIC", b"mif1": "HEIC", b"msf1": "HEIC",
}  # fmt: skip


def kind_of(head: bytes) -> str | None:
    """What the file that begins with `head` looks like: one of `DECODED`, or a name for messages, or None for nothing known."""
    for offset, magic, kind in _MAGIC:
        if head.startswith(magic, offset) and (kind != "WebP" or head.startswith(b"RIFF")):
            return kind
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], "a video")
    return _kind_of_text(head)


def _kind_of_text(head: bytes) -> str | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if re.search(rb"<svg[\s>]", text):
        return "SVG"
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body", b"<script", b"<title")):
        return "HTML"
    if text.startswith(b"<?xml"):
        return "XML"
    return "JSON" if re.match(rb"[{\[]\s*[\"{\[\]}\d]", text) else None


def header_size(head: bytes) -> tuple[int, int] | None:
    """(width, height) in pixels that the header of a PNG, GIF or WebP says; None where it is broken, and for JPEG.

    JPEG has its size behind blocks of any length, and its decoder takes no memory before it is asked for pixels. WebP's takes the
    whole canvas at once.
    Source: PNG 11.2.2, GIF89a 18, RFC 9649 2.5 to 2.7, RFC 6386 9.1, RFC 9649 3.4.
    """
    try:
        if head.startswith(b"\x89PNG"):
            width, height = struct.unpack_from(">II", head, 16)
            return width, height
        if head.startswith(b"GIF8"):
            width, height = struct.unpack_from("<HH", head, 6)
            return width, height
        return _webp_size(head) if head.startswith(b"WEBP", 8) else None
    except struct.error:
        return None


def _webp_size(head: bytes) -> tuple[int, int] | None:
    chunk = head[12:16]
    if chunk == b"VP8X":
        first, last = struct.unpack_from("<IH", head, 24)
        return (first & 0xFFFFFF) + 1, (first >> 24 | last << 8) + 1
    if chunk == b"VP8L" and head[20:21] == b"\x2f":
        (bits,) = struct.unpack_from("<I", head, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None
