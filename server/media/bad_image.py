"""What is wrong with an image, in words for the client that sent it.

Role: shared by the decoding process and the gateway, which makes a `MediaError` of each. Imports only the standard library.
"""

from __future__ import annotations

from typing import Final

from server.media.file_kind import DECODED

SEND: Final = f"send a {', '.join(DECODED[:-1])} or {DECODED[-1]} file"


class BadImageError(Exception):
    """The file is none that can be decoded, or is larger than may be. Its text is for the client."""


def empty() -> BadImageError:
    """A file without bytes."""
    return BadImageError(f"the image is empty (`0` bytes); {SEND}")


def too_many_bytes(num_bytes: int, max_bytes: int) -> BadImageError:
    """A file that is larger than files may be."""
    return BadImageError(f"the image file has `{num_bytes}` bytes, more than `{max_bytes}`; send a smaller one")


def too_many_pixels(width: int, height: int, max_pixels: int) -> BadImageError:
    """An image that is larger than images may be, whatever its file's size."""
    return BadImageError(
        f"the image has `{width}` x `{height}` = `{width * height}` pixels, more than `{max_pixels}`; scale it down"
    )


def not_an_image(kind: str | None) -> BadImageError:
    """A file of another kind, which `kind` names where it is known."""
    looks = f"it looks like `{kind}`" if kind else "its first bytes are those of no known kind"
    return BadImageError(f"the file is no image that can be decoded: {looks}; {SEND}")


def broken(kind: str) -> BadImageError:
    """A file that begins as it should and does not go on so."""
    return BadImageError(f"the `{kind}` file is cut off or corrupt; send it whole, or save it anew with another program")


def too_much_memory() -> BadImageError:
    """A file that decoders want more memory for than any of its size needs."""
    return BadImageError("decoding the image takes more memory than one of its size may; save it anew with another program")
