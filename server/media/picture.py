"""From the bytes of an image file to an upright picture of 8-bit RGB or RGBA.

Role: what the decoding process does to each file. Imports only the standard library, Pillow and its neighbours that do so, too.
Invariant: the size is checked before pixels are decoded, and by the file's own first frame: the other frames of an animation are
never decoded. Whatever is wrong with a file is a `BadImageError`.
Must not: run in the gateway's process, which would die with Pillow's C code.
"""

from __future__ import annotations

import io
import warnings
from typing import Final

from PIL import GifImagePlugin, Image, ImageOps, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from server.media import bad_image
from server.media.bad_image import BadImageError
from server.media.file_kind import DECODED, HEAD_BYTES, header_size, kind_of

_PLUGINS: Final = (PngImagePlugin, JpegImagePlugin, WebPImagePlugin, GifImagePlugin)
"""Imported for what they register; otherwise the first file would wait for them."""

MAX_SCANS: Final = 32
MAX_SCANNED_PIXELS: Final = 1_000_000_000
"""Of a JPEG with more scans than any program makes: each takes the time of all its pixels, and may have next to no bytes."""

_TEXT_BOMBS: Final = ("Decompressed data too large", "Too much memory used in text chunks")
_DEEP_GREY: Final = ("I;16", "I;16L", "I;16B", "I;16N", "I")
_HIGH_BYTES: Final = [value >> 8 for value in range(1 << 16)]
_TRANSPARENCY_STEP: Final = {"L;2": 85, "L;4": 17}
"""Grey of few bits is spread over 0 to 255 when it is read, and the value that means transparent is not."""


def decode(data: bytes, max_pixels: int) -> Image.Image:
    """The picture in the file `data`: upright, its first frame; RGBA where the file says anything of transparency, else RGB.

    Raises `BadImageError`. 16-bit channels keep their high bytes.
    """
    if not data:
        raise bad_image.empty()
    head = data[:HEAD_BYTES]
    kind = kind_of(head)
    if kind is None or kind not in DECODED:
        raise bad_image.not_an_image(kind)
    if size := header_size(head):
        _check_size(size, max_pixels)
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = (max_pixels + 1) // 2  # Pillow refuses twice as many: frames that are larger than the header says
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _decode(data, kind, max_pixels)
    except BadImageError:
        raise
    except MemoryError:
        raise bad_image.too_much_memory() from None
    except Image.DecompressionBombError:
        raise BadImageError(f"the image, or a frame of it, has more than `{max_pixels}` pixels; scale it down") from None
    except Exception as error:  # noqa: BLE001  # decoders raise whatever a hostile file makes them raise
        if str(error).startswith(_TEXT_BOMBS):
            raise BadImageError("text or colour profile of the image unpack to too much; save it without metadata") from None
        raise bad_image.broken(kind) from None
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _decode(data: bytes, kind: str, max_pixels: int) -> Image.Image:
    with Image.open(io.BytesIO(data), formats=[kind.upper()]) as image:
        _check_size(image.size, max_pixels)
        if kind == "JPEG":
            _check_scans(data, image.size)
        stored_as = image.tile[0].args if image.tile else None
        image.load()
        _check_size(image.size, max_pixels)
        _correct_transparency(image, stored_as)
        try:
            ImageOps.exif_transpose(image, in_place=True)
        except MemoryError:  # or it would be of another size the next time
            raise
        except Exception:  # noqa: BLE001, S110 - orientation in metadata that is broken is none
            pass
        return _in_colour(image)


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise BadImageError(f"the image has `{width}` x `{height}` pixels, and needs one at least; send another")
    if width * height > max_pixels:
        raise bad_image.too_many_pixels(width, height, max_pixels)


def _check_scans(data: bytes, size: tuple[int, int]) -> None:
    """Count what begins scans, thumbnails' too. Nothing else looks like it: in pixels, a zero comes after each 255."""
    num_scans = data.count(b"\xff\xda")
    if num_scans > MAX_SCANS and num_scans * size[0] * size[1] > MAX_SCANNED_PIXELS:
        raise BadImageError(f"the `JPEG` file goes over its pixels `{num_scans}` times; save it anew, not as a progressive one")


def _correct_transparency(image: Image.Image, stored_as: object) -> None:
    """Make the value that means transparent one of the picture's values, which Pillow leaves as it was in the file.

    `stored_as`: the layout of pixels in the file, in Pillow's words.
    """
    transparency = image.info.get("transparency")
    if isinstance(transparency, str):  # a comment of this name
        del image.info["transparency"]
    elif isinstance(transparency, tuple) and stored_as == "RGB;16B":
        image.info["transparency"] = tuple(value >> 8 for value in transparency)
    elif isinstance(transparency, int) and isinstance(stored_as, str):
        image.info["transparency"] = transparency * _TRANSPARENCY_STEP.get(stored_as, 1)


def _in_colour(image: Image.Image) -> Image.Image:
    """`image` as RGBA or RGB."""
    mode = "RGBA" if image.has_transparency_data else "RGB"
    if image.mode in _DEEP_GREY:  # Pillow would take all above 255 for white
        values = image.convert("I")
        grey = values.point(_HIGH_BYTES, "L")
        if mode == "RGB":
            return grey.convert("RGB")
        hidden = image.info["transparency"]
        alpha = values.point([0 if value == hidden else 255 for value in range(1 << 16)], "L")
        return Image.merge("RGBA", (grey, grey, grey, alpha))
    return image if image.mode == mode else image.convert(mode)
