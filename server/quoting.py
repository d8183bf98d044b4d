"""Values of clients in messages to them.

Role: everything that repeats what a client sent goes through here. A value may have millions of characters; its beginning is
enough to be recognised, and the rest would come back with the error, into the log, too.
"""

from __future__ import annotations

from typing import Final

MAX_SHOWN_CHARS: Final = 60


def shown(value: object) -> str:
    """`value` in the words of JSON, without the quotes of a string; no longer than 60 characters, and lists and objects empty."""
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, dict):
        return "{…}" if value else "{}"
    if isinstance(value, list | tuple):
        return "[…]" if value else "[]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    try:
        return cut(str(value))
    except ValueError:  # an integer of thousands of digits, which Python does not write out
        return "a number of thousands of digits"


def cut(text: str, most: int = MAX_SHOWN_CHARS) -> str:
    """`text`, or the beginning of it."""
    return text if len(text) <= most else text[: most - 1] + "…"
