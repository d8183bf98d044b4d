"""A request's body, read as it arrives: its JSON, and apart from it the images that were written into it.

Role: step 2 of a request, before `protocol/` decodes the JSON. An image in a `data:` URL is lifted out of the body while it
arrives: its base64 goes into a memory file, and a reference, which no client can guess, stands for the URL. Invariants:

- No step on the event loop touches more than what was received at once and a carry of less than `min_lifted_bytes`; its cost
  does not depend on what the body says. Only who asks for `Body.restored` pays for the whole.
- With all references put back, the JSON is what was received, byte for byte, be it JSON or not.
- The JSON decodes where what was received does, to the same values but for the references.

The last one holds because only the inside of whole strings is replaced. In JSON a `"` begins a string, ends one, or is escaped
by the `\\` right before it. An ending one has no letter behind it, and outside of strings there is no `\\`: so a `"` with `data:`
behind it and no `\\` before it begins a string. What is lifted is printable ASCII without `"` and without escapes but `\\/`, up
to the `"` that ends the string, and the reference is that, too. Where the body is no JSON, such a `"` may end a string or stand
where none may; then there is a mistake at or before the first letter behind it, the reference's as well as the URL's.

Must not: know where images are expected. Other strings may begin with `data:`, too; `Body.restored` is for them.
"""

from __future__ import annotations

import asyncio
import io
import re
import secrets
from collections.abc import AsyncGenerator, Container, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from server.payload import Payload, PayloadFile

MIN_LIFTED_BYTES: Final = 64 * 1024
_BEGIN: Final = b'"data:'
_HEAD: Final = re.compile(rb"data:(?:[A-Za-z0-9.+;=_-]|\\?/){0,100};base64,")
_TEXT: Final = bytes(byte for byte in range(0x20, 0x7F) if byte not in b'"\\')
"""What is lifted: more than base64's alphabet, so that what is no base64 is found out by whoever decodes it, off the loop."""

_BACKSLASH: Final = ord("\\")
_STEP_BYTES: Final = 256 * 1024


@dataclass(slots=True, frozen=True)
class Lift:
    """One URL that was lifted: `reference` stands for it `at` bytes into the JSON. `head`: its beginning, to the comma, as sent.

    `slashes_escaped`: every `/` of the payload was sent as `\\/`, as PHP writes it; in the payload they are plain.
    """

    reference: str
    at: int
    head: bytes
    payload: Payload
    slashes_escaped: bool

    def url(self) -> bytes:
        """The URL as it was sent, read back."""
        return self.head + _as_sent(self.payload.read(), self.slashes_escaped)


@dataclass(slots=True, eq=False)
class Body:
    """A body that was read. `num_bytes`: of it, as received.

    `payloads`: what each reference in `json` stands for, base64 as it was sent, unchecked. A reference is the whole of a string:
    where it is not the URL of an image, nothing may be concluded from the string before it is `restored`.
    """

    json: bytes = field(repr=False)
    num_bytes: int
    payloads: Mapping[str, Payload] = field(default_factory=dict, repr=False)
    _lifts: Sequence[Lift] = field(default=(), repr=False)
    _file: PayloadFile | None = field(default=None, repr=False)

    def restored(self, references: Container[str]) -> bytes:
        """The JSON with the URLs that these stand for. Copies the whole body at once: milliseconds for each ten megabytes."""
        view = memoryview(self.json)
        pieces: list[bytes | memoryview] = []
        done = 0
        for lift in self._lifts:
            if lift.reference in references:
                pieces += view[done : lift.at], lift.url()
                done = lift.at + len(lift.reference)
        return b"".join([*pieces, view[done:]])

    def close(self) -> None:
        """Give the payloads' memory back. May be called twice."""
        if self._file is not None:
            self._file.close()


async def read_body(chunks: AsyncGenerator[bytes, None], *, min_lifted_bytes: int = MIN_LIFTED_BYTES) -> Body:
    """Read a body to its end. The caller closes it.

    Strings of at least `min_lifted_bytes` are lifted, their head included; so that it does not depend on how the body was cut,
    these must be more than the longest head (213). Errors of `chunks` come out as they are, with nothing left open.
    """
    begun = b""
    lifting: _Lifting | None = None
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                if lifting is not None:
                    await lifting.feed(chunk)
                    continue
                begun += chunk  # the chunk itself, not a copy of it, where nothing came before
                if len(begun) > min_lifted_bytes:
                    lifting = _Lifting(min_lifted_bytes)
                    await lifting.feed(begun)
    except BaseException:
        if lifting is not None:
            lifting.close()
        raise
    return Body(begun, len(begun)) if lifting is None else lifting.finish()


class _Lifting:
    """A body under way. `_held`: its end so far, which may begin what is lifted; `_last`: the byte before that."""

    def __init__(self, min_lifted_bytes: int) -> None:
        self._min_bytes = min_lifted_bytes
        self._json = io.BytesIO()  # gives its bytes away without copying them, which `bytearray` does not
        self._num_bytes = 0
        self._held = b""
        self._last = 0
        self._token = secrets.token_hex(16)
        self._lifts: list[Lift] = []
        self._file: PayloadFile | None = None
        self._open: _OpenLift | None = None

    async def feed(self, chunk: bytes) -> None:
        """Take what comes next."""
        self._num_bytes += len(chunk)
        data = self._held + chunk
        self._held = b""
        at = 0
        while at < len(data):
            at = self._pass_on(data, at) if self._open is None else await self._lift(self._open, data, at)

    def finish(self) -> Body:
        """What came."""
        if self._open is not None:  # the body ends within the string
            self._close_lift(self._open)
        self._json.write(self._held)
        payloads = {lift.reference: lift.payload for lift in self._lifts}
        return Body(self._json.getvalue(), self._num_bytes, payloads, self._lifts, self._file)

    def close(self) -> None:
        """Forget it all."""
        if self._file is not None:
            self._file.close()

    def _pass_on(self, data: bytes, start: int) -> int:
        """Write to the JSON from `start` up to the next payload; where that begins, or the end of `data`.

        Looks for long ways from one quote to the next, and at nothing else: from a quote it goes on to the last one within
        reach. That is a few searches for one byte in each `_min_bytes`, whatever they are.
        """
        at = start
        while at + self._min_bytes < len(data):
            quote = data.rfind(b'"', at, at + self._min_bytes + 1)
            if quote > at:
                at = quote
                continue
            if quote == at and not self._is_escaped(data, at) and (head := _HEAD.match(data, at + 1)) is not None:
                self._write(data, start, at + 1)
                self._file = self._file or PayloadFile()
                self._open = _OpenLift(head[0], self._file.num_bytes)
                return head.end()
            at = data.find(b'"', at + 1)
            if at < 0:
                at = len(data)
        quote = data.rfind(b'"', at)
        held = len(data)
        if quote >= 0 and _BEGIN.startswith(data[quote : quote + len(_BEGIN)]):
            held = quote
        self._write(data, start, held)
        self._held = data[held:]
        return len(data)

    def _is_escaped(self, data: bytes, at: int) -> bool:
        return (data[at - 1] if at else self._last) == _BACKSLASH

    def _write(self, data: bytes, start: int, end: int) -> None:
        self._json.write(memoryview(data)[start:end])
        if end:
            self._last = data[end - 1]

    async def _lift(self, lift: _OpenLift, data: bytes, start: int) -> int:
        """Move from `start` on to the file, up to the end of the string; where to go on."""
        assert self._file is not None
        quote = data.find(b'"', start)
        end = len(data) if quote < 0 else quote
        is_cut = quote < 0 and data[-1] == _BACKSLASH  # between `\` and `/`, perhaps
        text = lift.plain(data[start : end - is_cut])
        if text is None:
            await self._put_back(lift)
            return start
        self._file.append(text)
        if quote < 0:
            self._held = data[end - is_cut :]
            return len(data)
        self._close_lift(lift)
        self._json.write(b'"')
        self._last = data[quote]
        return quote + 1

    def _close_lift(self, lift: _OpenLift) -> None:
        assert self._file is not None
        reference = f"lifted:{self._token}:{len(self._lifts)}"
        payload = Payload(self._file, lift.offset, self._file.num_bytes - lift.offset, is_base64=True)
        self._lifts.append(Lift(reference, self._json.tell(), lift.head, payload, bool(lift.slashes_escaped)))
        self._json.write(reference.encode())
        self._open = None

    async def _put_back(self, lift: _OpenLift) -> None:
        """The string has what can't be lifted: it stays in the JSON as it came. In steps, as it may be long."""
        assert self._file is not None
        self._open = None
        self._json.write(lift.head)
        for offset in range(lift.offset, self._file.num_bytes, _STEP_BYTES):
            num_bytes = min(_STEP_BYTES, self._file.num_bytes - offset)
            text = Payload(self._file, offset, num_bytes).read()
            self._json.write(_as_sent(text, bool(lift.slashes_escaped)))
            await asyncio.sleep(0)


@dataclass(slots=True)
class _OpenLift:
    """A URL whose payload is under way, from `offset` of the file on. `slashes_escaped`: None until there was one."""

    head: bytes
    offset: int
    slashes_escaped: bool | None = None

    def plain(self, part: bytes) -> bytes | None:
        """The next part of it without escapes; None where it has others than `\\/`, some slashes only, or what is no text."""
        rest = part.translate(None, _TEXT)
        if not rest and not self.slashes_escaped:
            if self.slashes_escaped is None and b"/" in part:
                self.slashes_escaped = False
            return part
        plain = part.replace(b"\\/", b"/")
        num_escaped = len(part) - len(plain)
        if rest != b"\\" * num_escaped or plain.count(b"/") != num_escaped or (num_escaped and self.slashes_escaped is False):
            return None
        if num_escaped:
            self.slashes_escaped = True
        return plain


def _as_sent(text: bytes, slashes_escaped: bool) -> bytes:
    return text.replace(b"/", b"\\/") if slashes_escaped else text
