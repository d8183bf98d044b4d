"""From the text of a `data:` URL to bytes.

Role: runs in the decoding process, as the text may have tens of megabytes. Imports only the standard library.
"""

from __future__ import annotations

import binascii
import re
from contextlib import suppress

from server.media.bad_image import BadImageError


def decoded(text: bytes) -> bytes:
    """The bytes of `text`. Raises `BadImageError`.

    As browsers read it: padding may be missing and ASCII whitespace may be anywhere, as in lines of 76 characters; everything
    else that is not of the standard alphabet is a mistake, and so is padding that is not at the end.
    Source: WHATWG Infra, "forgiving-base64 decode".
    """
    if len(text) % 4 == 0 and not text.endswith(b"==="):  # Python takes padding after whole groups
        with suppress(binascii.Error):
            return binascii.a2b_base64(text, strict_mode=True)
    return _forgiven(text)


def _forgiven(text: bytes) -> bytes:
    text = text.translate(None, b" \t\n\f\r")
    if len(text) % 4 == 0:
        text = text.removesuffix(b"=").removesuffix(b"=")
    if wrong := re.search(rb"[^A-Za-z0-9+/]", text):
        character = wrong.group()
        what = f"`{character.decode()}`" if b" " < character < b"\x7f" else f"the byte `0x{character.hex()}`"
        hint = "with `+` and `/` instead of `-` and `_`" if character in b"-_" else "with the standard alphabet"
        where = " before its end" if character == b"=" else ""
        raise BadImageError(f"the base64 text has {what}{where}, which does not belong there; encode the file's bytes {hint}")
    if len(text) % 4 == 1:
        raise BadImageError(f"the base64 text has `{len(text)}` characters, which no file gives; send all of it")
    return binascii.a2b_base64(text + b"=" * (-len(text) % 4), strict_mode=True)
