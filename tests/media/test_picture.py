"""What is decoded is what a careful reader of each format sees: upright, in colour, the first frame."""

from __future__ import annotations

import struct
import zlib
from contextlib import nullcontext
from typing import Any

import pytest
from PIL import Image, ImageOps

from server.media.bad_image import BadImageError
from server.media.picture import decode
from tests.media.files import picture, png, read, saved

MAX_PIXELS = 1_000_000


def grey16(values: list[int], *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG of one row of 16-bit grey."""
    return png(len(values), 1, 16, 0, b"\x00" + struct.pack(f">{len(values)}H", *values), *chunks)


def colours(image: Image.Image) -> list[tuple[int, ...]]:
    """The values of each pixel."""
    return list(zip(*[iter(image.tobytes())] * len(image.mode), strict=True))


def assert_same(expected: Image.Image, actual: Image.Image) -> None:
    assert (expected.mode, expected.size) == (actual.mode, actual.size)
    assert expected.tobytes() == actual.tobytes()


@pytest.mark.parametrize(
    ("mode", "format", "seen"),
    [
        ("RGB", "PNG", "RGB"), ("RGBA", "PNG", "RGBA"), ("L", "PNG", "RGB"), ("LA", "PNG", "RGBA"), ("1", "PNG", "RGB"),
        ("P", "PNG", "RGB"), ("RGB", "JPEG", "RGB"), ("L", "JPEG", "RGB"), ("CMYK", "JPEG", "RGB"), ("RGB", "WEBP", "RGB"),
        ("RGBA", "WEBP", "RGBA"), ("P", "GIF", "RGB"), ("L", "GIF", "RGB"), ("1", "GIF", "RGB"),
    ],
)  # fmt: skip
def test_each_mode_is_read_as_pillow_reads_it(mode: str, format: str, seen: str) -> None:
    source = (
        picture("L").convert("CMYK")
        if mode == "CMYK"
        else picture("RGBA").convert(mode)
        if mode != "P"
        else picture("RGB").quantize(40)
    )
    file = saved(source, format, **({"lossless": True} if format == "WEBP" else {}))

    assert_same(read(file).convert(seen), decode(file, MAX_PIXELS))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_pictures_are_turned_upright(format: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = saved(picture(), format, exif=exif)
    upright = decode(file, MAX_PIXELS)

    assert_same(ImageOps.exif_transpose(read(file)).convert("RGB"), upright)
    assert ((17, 23) if orientation > 4 else (23, 17)) == upright.size


@pytest.mark.parametrize(
    "exif", [b"Exif\x00\x00II*\x00\xff\xff\xff\xff", b"Exif\x00\x00nonsense", b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\xff\xff"]
)
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_orientation_that_is_broken_is_none(format: str, exif: bytes) -> None:
    file = saved(picture(), format, exif=exif)

    assert_same(read(file).convert("RGB"), decode(file, MAX_PIXELS))


def test_deep_grey_keeps_its_shades() -> None:
    values = [0, 255, 256, 257, 1000, 32768, 65279, 65280, 65535]
    image = decode(grey16(values), MAX_PIXELS)

    assert "RGB" == image.mode
    assert [(value >> 8,) * 3 for value in values] == colours(image)


def test_deep_grey_hides_its_transparent_value_and_no_other_of_the_same_shade() -> None:
    image = decode(grey16([0, 1000, 1001, 65535], (b"tRNS", struct.pack(">H", 1000))), MAX_PIXELS)

    assert [(0, 0, 0, 255), (3, 3, 3, 0), (3, 3, 3, 255), (255, 255, 255, 255)] == colours(image)


@pytest.mark.parametrize(("depth", "pixels", "hidden"), [(1, b"\x40", 1), (2, b"\x1b", 2), (4, b"\x0a", 10), (8, b"\x07\x09", 9)])
def test_grey_of_few_bits_hides_its_transparent_value(depth: int, pixels: bytes, hidden: int) -> None:
    width = {1: 2, 2: 4, 4: 2, 8: 2}[depth]
    row = int.from_bytes(pixels, "big") >> (len(pixels) * 8 - width * depth)
    samples = [row >> depth * (width - 1 - place) & ((1 << depth) - 1) for place in range(width)]
    image = decode(png(width, 1, depth, 0, b"\x00" + pixels, (b"tRNS", struct.pack(">H", hidden))), MAX_PIXELS)

    shades = [sample * 255 // ((1 << depth) - 1) for sample in samples]
    expected = [(shade,) * 3 + (0 if sample == hidden else 255,) for shade, sample in zip(shades, samples, strict=True)]
    assert expected == colours(image)


@pytest.mark.parametrize("depth", [8, 16])
def test_a_colour_that_means_transparent_is_hidden(depth: int) -> None:
    scale = 257 if depth == 16 else 1
    rgb = [(10, 20, 30), (40, 50, 60)]
    pixels = b"".join(struct.pack(">3H" if depth == 16 else ">3B", *(value * scale for value in colour)) for colour in rgb)
    hidden = struct.pack(">3H", *(value * scale for value in rgb[1]))
    image = decode(png(2, 1, depth, 2, b"\x00" + pixels, (b"tRNS", hidden)), MAX_PIXELS)

    assert [(10, 20, 30, 255), (40, 50, 60, 0)] == colours(image)


def test_transparent_entries_of_palettes_are_hidden() -> None:
    palette = bytes([255, 0, 0, 0, 255, 0, 0, 0, 255])
    file = png(3, 1, 8, 3, b"\x00\x00\x01\x02", (b"PLTE", palette), (b"tRNS", b"\xff\x80\x00"))
    seen = [(255, 0, 0, 255), (0, 255, 0, 128), (0, 0, 255, 0)]
    gif = saved(read(file).convert("P"), "GIF", transparency=0)

    assert seen == colours(decode(file, MAX_PIXELS))
    assert ("RGBA", 0) == (decode(gif, MAX_PIXELS).mode, decode(gif, MAX_PIXELS).getpixel((0, 0))[3])


def test_a_comment_named_transparency_is_a_comment() -> None:
    file = png(1, 1, 8, 2, b"\x00\x01\x02\x03", (b"tEXt", b"transparency\x00no"))

    assert ("RGB", (1, 2, 3)) == (decode(file, MAX_PIXELS).mode, decode(file, MAX_PIXELS).getpixel((0, 0)))


@pytest.mark.parametrize(("format", "options"), [("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True}), ("MPO", {})])
def test_of_an_animation_the_first_frame_is_decoded(format: str, options: dict[str, Any]) -> None:
    frames = [picture().point(lambda value, step=step: (value + step) % 256) for step in range(0, 250, 5)]
    file = saved(frames[0], format, save_all=True, append_images=frames[1:], **options)
    expected = read(file)

    assert getattr(expected, "n_frames", 1) == 50
    assert_same(expected.convert("RGB"), decode(file, MAX_PIXELS))


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF"])
def test_one_pixel_too_many_is_refused_and_none_too_many_is_not(format: str) -> None:
    file = saved(picture(size=(100, 30)), format)

    assert (100, 30) == decode(file, 3000).size
    with pytest.raises(BadImageError) as raised:
        decode(file, 2999)
    assert "the image has `100` x `30` = `3000` pixels, more than `2999`; scale it down" == str(raised.value)


def test_a_frame_larger_than_the_gif_says_is_refused() -> None:
    file = bytearray(saved(picture("P", (60, 50)), "GIF"))
    file[6:10] = struct.pack("<HH", 1, 1)

    with pytest.raises(BadImageError, match="a frame of it, has more than `2000` pixels"):
        decode(bytes(file), 2000)


@pytest.mark.parametrize("chunk", [b"zTXt", b"iTXt", b"iCCP"])
def test_metadata_that_unpacks_to_much_is_refused(chunk: bytes) -> None:
    bomb = zlib.compress(bytes(20_000_000), 1)
    data = {b"zTXt": b"a\x00\x00", b"iTXt": b"a\x00\x01\x00\x00\x00", b"iCCP": b"a\x00\x00"}[chunk] + bomb
    file = png(1, 1, 8, 2, b"\x00\x01\x02\x03", (chunk, data))

    with pytest.raises(BadImageError, match="metadata"):
        decode(file, MAX_PIXELS)


@pytest.mark.parametrize(
    ("file", "what"),
    [
        (b"", "the image is empty (`0` bytes); send a PNG, JPEG, WebP or GIF file"),
        (b"<svg/>", "the file is no image that can be decoded: its first bytes are those of no known kind; send"),
        (b"<svg width='1'/>", "the file is no image that can be decoded: it looks like `SVG`; send a PNG, JPEG, WebP or GIF file"),
        (saved(picture(), "BMP"), "it looks like `BMP`"),
        (saved(picture(), "TIFF"), "it looks like `TIFF`"),
        (saved(picture(), "PNG")[:40], "the `PNG` file is cut off or corrupt; send it whole"),
        (saved(picture(), "JPEG")[:-200], "the `JPEG` file is cut off or corrupt"),
        (saved(picture(), "GIF")[:-200], "the `GIF` file is cut off or corrupt"),
        (saved(picture(), "WEBP")[:-50], "the `WebP` file is cut off or corrupt"),
        (png(0, 5, 8, 2, b""), "`0` x `5` pixels, and needs one at least"),
        (b"\x89PNG\r\n\x1a\n<html>", "the `PNG` file is cut off or corrupt"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(file: bytes, what: str) -> None:
    with pytest.raises(BadImageError) as raised:
        decode(file, MAX_PIXELS)

    assert what in str(raised.value)


def test_pillow_is_left_as_it_was() -> None:
    before = Image.MAX_IMAGE_PIXELS
    decode(saved(picture(), "PNG"), 1000)

    assert before == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize(
    ("most_pixels", "num_scans", "is_refused"), [(1, 32, False), (1, 33, True), (40_000, 40, False), (40_000, 41, True)]
)
def test_a_jpeg_that_is_gone_over_too_often_is_refused(
    monkeypatch: pytest.MonkeyPatch, most_pixels: int, num_scans: int, is_refused: bool
) -> None:
    """Each scan takes the time of all pixels, and may have next to no bytes."""
    monkeypatch.setattr("server.media.picture.MAX_SCANNED_PIXELS", most_pixels)
    file = saved(Image.new("L", (40, 25), 100), "JPEG", progressive=True)
    last_scan = file[file.rindex(b"\xff\xda") : -2]
    file = file[:-2] + last_scan * (num_scans - file.count(b"\xff\xda")) + file[-2:]
    with pytest.raises(BadImageError, match=f"goes over its pixels `{num_scans}` times") if is_refused else nullcontext():
        assert (40, 25) == decode(file, 50_000_000).size
