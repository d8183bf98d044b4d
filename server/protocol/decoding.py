"""Bytes of a request body -> a checked structure, or one clear 400.

Role: the first look at what a client sent. Invariant: the work is bounded before it starts (nesting, number of
values), so that no body stalls the event loop; the first mistake is reported with its path. May run in any thread.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from server.errors import InvalidRequestError
from server.pauses import go_on
from server.quoting import cut

T = TypeVar("T")

_LIMITS = {b"[": 150_000, b"{": 150_000, b'":': 250_000, b",": 1_000_000}
"""What one body may have of each outside its strings: lists, objects, named values, values. Decoding takes under 100 ms then."""

_FEWEST = min(_LIMITS.values())
_MARKS = b"[{:,"
_NO_MARKS = bytes(value for value in range(256) if value not in _MARKS)
_STEP_BYTES = 256 * 1024

_MAX_QUOTES = 1_000_000
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)

_POSITION = re.compile(r"\(byte (\d+)\)$")
_WINDOW = 16
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_NOT_A_NUMBER = re.compile(rb"-?(?:NaN|Infinity)")
_HINTS = (
    (re.compile(r"\.role$"), "; roles are `system`, `developer`, `user`, `assistant` and `tool`"),
    (re.compile(r"^thinking\.type$"), "; it must be `enabled` or `disabled`"),
    (re.compile(r"\.detail$"), "; it must be `auto`, `low`, `high` or `original`"),
    (re.compile(r"\.tool_calls\[\d+\]\.type$"), "; it must be `function`"),
)
_MAX_EXPLANATION_CHARS = 160


def decode(body: bytes, decoder: msgspec.json.Decoder[T], pause: Callable[[], None] = go_on) -> T:
    """`body` as the decoder's type. Raises `InvalidRequestError` with the path of the first mistake.

    `pause` is called every so often. The decoder itself does not let go of the interpreter: 1 ms for a megabyte or two of texts.
    """
    if not body.strip():
        raise InvalidRequestError("the request has no body; send a JSON object with `Content-Type: application/json`")
    _check_size(body, pause)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except msgspec.DecodeError as error:
        raise InvalidRequestError(_malformed(body, str(error)), param=None) from None
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply to be read; use fewer levels of lists and objects") from None


def _check_size(body: bytes, pause: Callable[[], None] = go_on) -> None:
    """Raise where `body` has more values than may be decoded. Text with many brackets or commas costs a second look."""
    if len(body) <= _FEWEST or not _may_have_too_many(body, pause):
        return
    num_quotes = body.count(b'"') - body.count(b'\\"')
    if num_quotes > _MAX_QUOTES:
        raise InvalidRequestError(f"the body has more than {_MAX_QUOTES // 2} strings; send fewer")
    structure = _STRING.sub(b'"', body)
    for piece, most in _LIMITS.items():
        if structure.count(piece) > most:
            too_many = f"more than {most} times `{piece.decode()}` outside its strings"
            raise InvalidRequestError(f"the body has {too_many}; send fewer values")


def _may_have_too_many(body: bytes, pause: Callable[[], None]) -> bool:
    """Whether there are that many of any piece, strings included, or of the last byte of one, which takes less to count.

    What is counted is taken out of the body first: that is one walk over it, where each count would be another.
    """
    counts: Counter[int] = Counter()
    for start in range(0, len(body), _STEP_BYTES):
        marks = body[start : start + _STEP_BYTES].translate(None, _NO_MARKS)
        for mark in _MARKS:
            counts[mark] += marks.count(mark)
        pause()
    too_many = (piece for piece, most in _LIMITS.items() if counts[piece[-1]] > most)
    return any(len(piece) == 1 or body.count(piece) > _LIMITS[piece] for piece in too_many)


def _invalid(text: str) -> InvalidRequestError:
    """msgspec's words with the path in the API's form: `$.messages[0].role` is `messages[0].role`."""
    what, has_path, path = text.rpartition(" - at `$")  # from the end: msgspec repeats values, however long
    if not has_path:
        what, path = text, ""
    what = cut(what, _MAX_EXPLANATION_CHARS)
    param = path.removesuffix("`").removeprefix(".") or None
    missing = re.search(r"missing required field `(.+?)`", what)
    if missing:
        param = f"{param}.{missing[1]}" if param else missing[1]
        return InvalidRequestError(f"`{param}` is missing; it is required", param=param)
    where = f"`{param}`: " if param else "the body: "
    hint = next((hint for path, hint in _HINTS if path.search(param)), "") if param else "; send a JSON object"
    return InvalidRequestError(where + what[:1].lower() + what[1:] + hint, param=param)


def _malformed(body: bytes, text: str) -> str:
    """Why `body` is not JSON, naming the two causes that clients meet and can't see. Looks only near the place of the mistake."""
    position = _POSITION.search(text)
    at = int(position[1]) if position else len(body)
    start = max(0, at - _WINDOW)
    window = body[start : at + _WINDOW]
    if "surrogate" in text or position is None:
        if found := _SURROGATE.search(window):
            return (
                f"the body is not JSON: `{found[0].decode()}` at byte {start + found.start()} is half of a surrogate pair; "
                "replace what can't be encoded, for example with U+FFFD"
            )
    elif found := _NOT_A_NUMBER.search(window):
        where = f"`{found[0].decode()}` at byte {start + found.start()}"
        return f"the body is not JSON: {where} is not a JSON number; leave the field out or send null"
    return f"the body is not JSON: {text.removeprefix('JSON is malformed: ')}"


def unknown_fields(body: bytes, known: Sequence[str]) -> list[str]:
    """Top-level names in `body` that are not in `known`, for a debug log. `body` has been decoded before."""
    fields: dict[str, Any] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return sorted(set(fields) - set(known))
