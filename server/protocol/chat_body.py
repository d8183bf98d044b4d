"""From a body to a checked request, in a thread where the body is long.

Role: between `body.py`, which has taken images out of the JSON, and `chat.py`, which is given nothing but JSON.
Invariant: what is said of a mistake is said of what the client sent, references to images notwithstanding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from server.body import Body
from server.errors import InvalidRequestError
from server.pauses import Pauses, go_on
from server.protocol import chat
from server.protocol.chat import ChatRequest
from server.protocol.messages import ImageSource, image_sources

LONG_BYTES: Final = 128 * 1024
"""Of a body whose parsing may take over a millisecond, or five where it is full of small values."""


class ParsedBody(NamedTuple):
    """A checked request, and the images in it, in order."""

    wanted: ChatRequest
    sources: list[ImageSource]


class BodyParser:
    """Parses bodies. Long ones have one thread among them: they need the interpreter, so more would only make others wait."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="parse")

    async def parse(self, body: Body, *, ignore_reserved: bool) -> ParsedBody:
        """What `body` asks for; it is closed where nothing of it is needed any more. Raises `InvalidRequestError`."""
        if len(body.json) <= LONG_BYTES:
            return parse_body(body, ignore_reserved=ignore_reserved)
        loop = asyncio.get_running_loop()
        work = partial(parse_body, body, ignore_reserved=ignore_reserved, pause=Pauses(loop))
        return await loop.run_in_executor(self._thread, work)


def parse_body(body: Body, *, ignore_reserved: bool, pause: Callable[[], None] = go_on) -> ParsedBody:
    """As `BodyParser.parse`. Data that was taken out of the body and is no image's is put back."""
    try:
        wanted = chat.parse(body.json, ignore_reserved=ignore_reserved, pause=pause)
    except InvalidRequestError as error:
        # What names a place in the JSON, or a value that was taken out of it, is to be said of what was sent.
        if body.payloads and (error.param is None or any(reference in error.message for reference in body.payloads)):
            chat.parse(body.restored(body.payloads), ignore_reserved=ignore_reserved, pause=pause)
        raise
    sources = image_sources(wanted.messages)
    if others := body.payloads.keys() - {source.url for source in sources}:
        wanted = chat.parse(body.restored(others), ignore_reserved=ignore_reserved, pause=pause)
    if not sources:
        body.close()
    return ParsedBody(wanted, sources)
