"""Files that are no images, lie about what they are, or are made to exhaust whoever decodes them."""

from __future__ import annotations

import gzip
import io
import random
import struct
import zipfile
import zlib
from functools import partial
from typing import Any

from PIL import Image

from tests.media.files import picture, png, saved

SIZE = (23, 17)
"""Of every picture here that can be decoded."""

EXIF = b"Exif\x00\x00II*\x00\x08\x00\x00\x00\x01\x00\x12\x01\x03\x00\xff\xff\xff\xff\x06\x00\x00\x00"
"""Orientation, of four thousand million values."""

DRAWING = b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"><image href="http://127.0.0.1/secret"/></svg>'
PAGE = b"<!DOCTYPE html><html><body>secret<script>fetch('http://127.0.0.1/')</script></body></html>"


def plain(**options: Any) -> bytes:
    """A good PNG of `SIZE`."""
    return saved(picture(), "PNG", **options)


def cut(format: str, share: float = 0.6) -> bytes:
    """The first part of a file."""
    file = saved(picture(size=(200, 200)), format)
    return file[: int(len(file) * share)]


def png_header(width: int, height: int) -> bytes:
    """A PNG of which little but its header is there."""
    return png(width, height, 8, 2, bytes(100))


def bomb() -> bytes:
    """50,000 x 50,000 pixels of one bit, as far as they go into 100 kB: a thousandth of what they unpack to."""
    packer = zlib.compressobj(9)
    packed = b""
    while len(packed) < 99_000:
        packed += packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_SYNC_FLUSH)
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def chunk(name: bytes, data: bytes) -> bytes:
    """One chunk of a PNG."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def with_chunk(name: bytes, data: bytes, *, wrong_sum: bool = False) -> bytes:
    """A good PNG with one more chunk behind its header."""
    more = chunk(name, data)
    return plain()[:33] + (more[:-1] + bytes([more[-1] ^ 1]) if wrong_sum else more) + plain()[33:]


def changed(name: bytes) -> bytes:
    """A PNG with a bit of this chunk turned over, which its checksum tells."""
    file = bytearray(plain())
    file[file.index(name) + 6] ^= 1
    return bytes(file)


def text_bomb(name: bytes = b"zTXt") -> bytes:
    """A comment, or a colour profile, of a hundred megabytes."""
    return with_chunk(name, b"name\0\0" + zlib.compress(bytes(100 << 20), 9))


def too_many_rows() -> bytes:
    """A hundred megabytes of pixels behind those that the header speaks of."""
    width, height = SIZE
    return png(width, height, 8, 2, bytes((1 + 3 * width) * height) + bytes(100 << 20))


def jpeg_of(width: int, height: int) -> bytes:
    """A JPEG whose header says another size than there is."""
    file = bytearray(saved(picture(), "JPEG"))
    struct.pack_into(">HH", file, file.index(b"\xff\xc0") + 5, height, width)
    return bytes(file)


def jpeg_of_scans() -> bytes:
    """A progressive JPEG that goes over its 49 million pixels again and again: seconds of work for every few kB."""
    file = io.BytesIO()
    Image.new("L", (7000, 7000), 100).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    last_scan = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last_scan * 2000 + data[-2:]


def png_of_chunks(num: int = 1_500_000) -> bytes:
    """A PNG with so many chunks without anything in them, each of which is looked at: seconds of work."""
    return plain()[:33] + chunk(b"aaAa", b"") * num + plain()[33:]


def gif_of_frames(num: int = 10_000) -> bytes:
    """A GIF of so many frames."""
    file = saved(picture("P"), "GIF")
    start = 13 + 3 * (2 << (file[10] & 7))
    return file[:start] + file[start:-1] * num + b";"


def gif_of_a_huge_frame() -> bytes:
    """A GIF of one pixel, with a frame of 65,535 x 65,535."""
    return (
        b"GIF89a"
        + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0)
        + bytes(6)
        + b","
        + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0)
        + b"\x02\x02D\x01\x00;"
    )


def gif_of_nothing() -> bytes:
    """A GIF without frames."""
    return b"GIF89a" + struct.pack("<HHBBB", *SIZE, 0x80, 0, 0) + bytes(6) + b";"


def webp_canvas(width: int, height: int) -> bytes:
    """A WebP whose canvas is larger than its picture."""
    picture_chunk = saved(picture(), "WEBP", lossless=True)[12:]
    canvas = b"VP8X" + struct.pack("<II", 10, 0) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBP" + canvas + picture_chunk
    return b"RIFF" + struct.pack("<I", len(body)) + body


def animated(format: str) -> bytes:
    """Three frames."""
    return saved(picture(), format, save_all=True, append_images=[picture().rotate(90), picture().rotate(180)])


def archive() -> bytes:
    """A ZIP archive with an image in it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr("a.png", plain())
    return file.getvalue()


def noise() -> bytes:
    """Bytes that mean nothing."""
    return b"\x01" + random.Random(5).randbytes(5000)


def box(brand: bytes) -> bytes:
    """The beginning of a file as video and newer image formats have it."""
    return struct.pack(">I", 24) + b"ftyp" + brand + bytes(4) + brand + b"mif1" + bytes(100)


REFUSED = {
    "no bytes": (bytes, "no bytes", "is empty (`0` bytes)"),
    "the PNG bomb": (bomb, "too many bytes or pixels", "`50000` x `50000`"),
    "a cut PNG": (partial(cut, "PNG"), "truncated or corrupt", "`PNG` file is cut off or corrupt"),
    "a cut JPEG": (partial(cut, "JPEG"), "truncated or corrupt", "`JPEG` file is cut off or corrupt"),
    "a cut WebP": (partial(cut, "WEBP"), "truncated or corrupt", "`WebP` file is cut off or corrupt"),
    "a cut GIF": (partial(cut, "GIF"), "truncated or corrupt", "`GIF` file is cut off or corrupt"),
    "a PNG's first bytes": (lambda: plain()[:8], "truncated or corrupt", "`PNG` file"),
    "a JPEG's first bytes": (lambda: b"\xff\xd8\xff", "truncated or corrupt", "`JPEG` file"),
    "a WebP's first bytes": (lambda: b"RIFF\x04\0\0\0WEBP", "truncated or corrupt", "`WebP` file"),
    "a GIF's first bytes": (lambda: b"GIF89a", "truncated or corrupt", "`GIF` file"),
    "a PNG without pixels": (lambda: plain()[:33] + chunk(b"IEND", b""), "truncated or corrupt", "`PNG` file"),
    "a GIF without frames": (gif_of_nothing, "truncated or corrupt", "`GIF` file"),
    "a PNG of 0 x 0": (partial(png_header, 0, 0), "too many bytes or pixels", "needs one at least"),
    "a PNG of 2^31 - 1 squared": (partial(png_header, 2**31 - 1, 2**31 - 1), "too many bytes or pixels", "`2147483647` x"),
    "a PNG one pixel wide": (partial(png_header, 1, 50_000_001), "too many bytes or pixels", "`50000001` pixels"),
    "a JPEG of 65,535 squared": (partial(jpeg_of, 65535, 65535), "too many bytes or pixels", "more than `50000000` pixels"),
    "a JPEG of 0 x 0": (partial(jpeg_of, 0, 0), "truncated or corrupt", "`JPEG` file"),
    "a JPEG of 2,000 scans": (jpeg_of_scans, "a JPEG of too many scans", "goes over its pixels `2006` times"),
    "a GIF with a huge frame": (gif_of_a_huge_frame, "too many bytes or pixels", "more than `50000000` pixels"),
    "a WebP with a huge canvas": (partial(webp_canvas, 16384, 16384), "too many bytes or pixels", "`16384` x `16384`"),
    "a PNG with a wrong sum": (partial(changed, b"IDAT"), "truncated or corrupt", "`PNG` file"),
    "a PNG with a wrong header": (partial(changed, b"IHDR"), "truncated or corrupt", "`PNG` file"),
    "a PNG with a zTXt bomb": (text_bomb, "metadata that unpacks to too much", "unpack to too much"),
    "a PNG with a profile bomb": (partial(text_bomb, b"iCCP"), "metadata that unpacks to too much", "unpack to too much"),
    "a PNG with a comment of a wrong sum": (
        partial(with_chunk, b"tEXt", b"a\0b", wrong_sum=True),
        "truncated or corrupt",
        "`PNG` file",
    ),
    "a PNG with a chunk of 2 GiB": (lambda: plain()[:33] + b"\x7f\xff\xff\xffIDAT", "truncated or corrupt", "`PNG` file"),
    "SVG": (lambda: DRAWING, "another kind of file", "`SVG`"),
    "HTML": (lambda: PAGE, "another kind of file", "`HTML`"),
    "XML with entities": (
        lambda: b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>',
        "another kind of file",
        "`XML`",
    ),
    "JSON": (lambda: b'{"secret": 1}', "another kind of file", "`JSON`"),
    "PDF": (lambda: b"%PDF-1.7\n", "another kind of file", "`PDF`"),
    "PostScript": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n(secret) run", "another kind of file", "no known kind"),
    "ZIP": (archive, "another kind of file", "`a ZIP archive`"),
    "gzip around a PNG": (lambda: gzip.compress(plain()), "another kind of file", "`gzip`"),
    "ELF": (lambda: b"\x7fELF" + bytes(60), "another kind of file", "no known kind"),
    "BMP": (lambda: saved(picture(), "BMP"), "another kind of file", "`BMP`"),
    "TIFF": (lambda: saved(picture(), "TIFF"), "another kind of file", "`TIFF`"),
    "ICO": (lambda: saved(picture(), "ICO"), "another kind of file", "`an ICO icon`"),
    "PPM": (lambda: saved(picture(), "PPM"), "another kind of file", "no known kind"),
    "TGA": (lambda: saved(picture(), "TGA"), "another kind of file", "no known kind"),
    "DDS": (lambda: saved(picture(), "DDS"), "another kind of file", "no known kind"),
    "JPEG 2000": (lambda: b"\x00\x00\x00\x0cjP  \r\n\x87\n", "another kind of file", "`JPEG 2000`"),
    "HEIC": (partial(box, b"heic"), "another kind of file", "`HEIC`"),
    "AVIF": (partial(box, b"avif"), "another kind of file", "`AVIF`"),
    "video": (partial(box, b"isom"), "another kind of file", "`a video`"),
    "noise": (noise, "another kind of file", "no known kind"),
    "one byte": (lambda: b"\x89", "another kind of file", "no known kind"),
    "zeros": (lambda: bytes(1000), "another kind of file", "no known kind"),
    "HTML that begins as a GIF": (lambda: b"GIF89a" + PAGE, "too many bytes or pixels", "`8508` x `20292`"),
    "HTML before a PNG": (lambda: PAGE + plain(), "another kind of file", "`HTML`"),
    "base64 of base64": (lambda: b"iVBORw0KGgoAAAANSUhEUgAA", "another kind of file", "encoded twice"),
    "a data URL in one": (lambda: b"data:image/png;base64,iVBORw0KGgo=", "another kind of file", "a data URL inside of one"),
}
"""What each is named -> how it is made, what the documentation calls it, and what its error says."""

TAKEN = {
    "a PNG with 10 MB behind it": lambda: plain() + bytes(10 << 20),
    "a PNG with 100 MB of pixels too many": too_many_rows,
    "a PNG with HTML behind it": lambda: plain() + PAGE,
    "a GIF with a ZIP archive behind it": lambda: saved(picture("P"), "GIF") + archive(),
    "a GIF of 10,000 frames": gif_of_frames,
    "an animated WebP": partial(animated, "WEBP"),
    "an animated PNG": partial(animated, "PNG"),
    "a JPEG with broken EXIF": lambda: saved(picture(), "JPEG", exif=EXIF),
    "a PNG with broken EXIF": lambda: saved(picture(), "PNG", exif=EXIF),
    "a JPEG with a text bomb's name": lambda: saved(picture(), "JPEG", comment=b"zTXt" * 1000),
}
"""What looks hostile and shows a picture of `SIZE` nevertheless."""
