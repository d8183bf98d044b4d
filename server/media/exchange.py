"""One request for an image to one address, and its answer, on a connection of its own.

Role: the network of `fetch.py`, which has found the address and checked it. Only that address is connected to; TLS is verified
against the URL's name.
Invariant: what a server sends costs bounded work at a time: the head of an answer has `MAX_HEAD_BYTES`, and the event loop is
given back between pieces of a body, however small a server makes them.
Must not: send anything that tells who asks, keep connections, or repeat in a message what a server said.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpcore

from server.errors import MediaError
from server.media.addresses import Address
from server.media.urls import ImageUrl
from server.payload import PayloadFile

MAX_HEAD_BYTES: Final = 16 * 1024
MAX_HEAD_READ_BYTES: Final = 4 * 1024
MAX_READ_BYTES: Final = 16 * 1024
MAX_TRIED_ADDRESSES: Final = 4
_PIECES_A_TURN: Final = 32
_NETWORK_ERRORS: Final = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, ssl.SSLError)


@dataclass(slots=True, frozen=True)
class Answer:
    """The head of an answer, and its body as it comes. `headers`: by lower-case name, those of one name joined by commas."""

    host: str
    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]


class _Connection(httpcore.AsyncHTTP11Connection):
    """Keeps less of what it can't parse yet, so that trailers don't make a larger head than a head may be."""

    MAX_INCOMPLETE_EVENT_SIZE = MAX_HEAD_BYTES


class _Stream(httpcore.AsyncNetworkStream):
    """A connection that is read in smaller pieces, and only so far for a head.

    Thousands of tiny headers or interim answers take tens of milliseconds to parse, in which nothing else would run.
    """

    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner
        self._head_bytes_left: int | None = MAX_HEAD_BYTES

    def head_is_over(self) -> None:
        """What comes now is the body, which others bound."""
        self._head_bytes_left = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._head_bytes_left is None:
            return await self._inner.read(min(max_bytes, MAX_READ_BYTES), timeout)
        if self._head_bytes_left <= 0:
            raise httpcore.RemoteProtocolError("the head has no end")
        data = await self._inner.read(min(max_bytes, MAX_HEAD_READ_BYTES, self._head_bytes_left), timeout)
        self._head_bytes_left -= len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


@asynccontextmanager
async def ask(
    url: ImageUrl, addresses: Sequence[Address], tls: ssl.SSLContext | None, deadline_s: float
) -> AsyncGenerator[Answer, None]:
    """Ask for `url` at the first of `addresses` that takes connections, by `deadline_s` on the loop's clock.

    `tls`: how to verify the server, for https. Raises `MediaError` without `param`. The deadline bounds the choice of an address;
    the rest is the caller's to bound.
    """
    target = httpcore.URL(
        scheme=url.scheme.encode(), host=url.host_name.encode(), port=url.port, target=url.target.encode("ascii")
    )
    stream = _Stream(await _connect(url, addresses, tls, deadline_s))
    try:
        request = httpcore.Request("GET", target, headers=_headers(url))
        try:
            response = await _Connection(target.origin, stream).handle_async_request(request)
        except _NETWORK_ERRORS as error:
            raise _broken(url.host_name, error) from error
        stream.head_is_over()
        async with aclosing(_pieces(response, url.host_name)) as body:
            yield Answer(url.host_name, response.status, _joined(response.headers), body)
    finally:
        await stream.aclose()


async def receive(answer: Answer, max_bytes: int) -> PayloadFile:
    """The body of an answer, in a file. Raises `MediaError` where it has more than `max_bytes`, without reading on."""
    announced = answer.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise too_large(answer.host, max_bytes)
    file = PayloadFile()
    try:
        num_pieces = 0
        async for piece in answer.body:
            if file.num_bytes + len(piece) > max_bytes:
                raise too_large(answer.host, max_bytes)
            file.append(piece)
            num_pieces += 1
            if num_pieces % _PIECES_A_TURN == 0:
                await asyncio.sleep(0)
    except BaseException:
        file.close()
        raise
    return file


def too_large(host: str, max_bytes: int) -> MediaError:
    """An image at `host` is larger than this request may have."""
    return MediaError(f"the image at `{host}` is larger than the `{max_bytes}` bytes that it may have; send a smaller one")


def _headers(url: ImageUrl) -> list[tuple[bytes, bytes]]:
    return [
        (b"Host", url.host_header.encode()),
        (b"User-Agent", b"k3-gateway"),
        (b"Accept", b"image/*"),
        (b"Accept-Encoding", b"identity"),
        (b"Connection", b"close"),
    ]


async def _connect(
    url: ImageUrl, addresses: Sequence[Address], tls: ssl.SSLContext | None, deadline_s: float
) -> httpcore.AsyncNetworkStream:
    """A connection to the first address that takes one; each is waited for as long as is left for it and those after it."""
    tried = addresses[:MAX_TRIED_ADDRESSES]
    failure: Exception | None = None
    for index, address in enumerate(tried):
        share_s = max(0.0, deadline_s - asyncio.get_running_loop().time()) / (len(tried) - index)
        try:
            stream = await httpcore.AnyIOBackend().connect_tcp(str(address), url.port, timeout=share_s)
            if tls is None:
                return stream
            return await _secured(stream, tls, url.host_name, share_s)
        except _NETWORK_ERRORS as error:
            failure = error
    raise _unconnected(url, failure) from failure


async def _secured(
    stream: httpcore.AsyncNetworkStream, tls: ssl.SSLContext, name: str, timeout_s: float
) -> httpcore.AsyncNetworkStream:
    try:
        return await stream.start_tls(tls, server_hostname=name, timeout=timeout_s)
    except BaseException:
        await stream.aclose()
        raise


async def _pieces(response: httpcore.Response, host: str) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in response.aiter_stream():
            yield piece
    except _NETWORK_ERRORS as error:
        raise _broken(host, error) from error
    finally:
        await response.aclose()


def _joined(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(name.decode("ascii").lower(), []).append(value.decode("latin-1"))
    return {name: ", ".join(all_values) for name, all_values in values.items()}


def _broken(host: str, error: Exception) -> MediaError:
    if isinstance(error, httpcore.RemoteProtocolError):
        return MediaError(f"`{host}` has sent broken or oversized HTTP, or not all of it; check the URL, or send base64")
    return MediaError(f"the connection to `{host}` broke before the image was there; try again, or send base64")


def _unconnected(url: ImageUrl, failure: Exception | None) -> MediaError:
    if _is_of_certificate(failure):
        return MediaError(f"`{url.host_name}` has no certificate that is valid for this name; send base64 instead")
    return MediaError(f"`{url.host_name}` can't be connected to at port `{url.port}`; check the URL, or send base64")


def _is_of_certificate(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False
