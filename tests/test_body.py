"""Bodies with images in them: what is lifted, that nothing else is, and that all of it can be put back."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import random
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect

from server import body as module
from server.body import MIN_LIFTED_BYTES, Body, read_body
from server.payload import Payload, PayloadFile

SMALL = 220  # more than the longest head
IMAGE = base64.b64encode(random.Random(1).randbytes(165))
HEAD = b"data:image/png;base64,"
LIFTED = [
    HEAD + IMAGE,
    b"data:;base64," + IMAGE,
    b"data:image/svg+xml;charset=utf-8;base64," + IMAGE,
    b"data:" + b"x" * 100 + b";base64," + IMAGE,
    HEAD + base64.urlsafe_b64encode(base64.b64decode(IMAGE)),
    HEAD + b"no base64: (%2B) " * 20,
    (HEAD + IMAGE).replace(b"/", b"\\/"),
    b"data:image\\/png;base64," + IMAGE,
    b"data:" + b"\\/" * 100 + b";base64," + IMAGE.replace(b"/", b"\\/"),
    HEAD + IMAGE.replace(b"/", b"A"),
]
NOT_LIFTED = [
    HEAD + b"A" * 150,
    b"DATA:image/png;base64," + IMAGE,
    b"data:image/png;BASE64," + IMAGE,
    b" " + HEAD + IMAGE,
    b"x" + HEAD + IMAGE,
    b"data:image/png," + IMAGE,
    b"data:image/p ng;base64," + IMAGE,
    b"data:" + b"x" * 101 + b";base64," + IMAGE,
    b"data:image\\u002fpng;base64," + IMAGE,
    HEAD + IMAGE + b"\\n",
    HEAD + IMAGE + b'\\"',
    HEAD + IMAGE + b"\\\\",
    HEAD + IMAGE + b"\\u0041" + IMAGE,
    HEAD + IMAGE + b"\\\\/" + IMAGE,
    HEAD + IMAGE + b"\\/" + IMAGE + b"/" + IMAGE,
    (HEAD + IMAGE).replace(b"/", b"\\/") + b"/" + b"A" * 50,
    HEAD + IMAGE + "é".encode() + IMAGE,
    HEAD + IMAGE + b"\x7f",
    b"text " + b'\\"' + HEAD + IMAGE + b'\\"',
    b"text " + b'\\\\\\"' + HEAD + IMAGE,
    b"\\" + HEAD + IMAGE,
]
BROKEN = [
    b'{"a": "' + HEAD + IMAGE,
    b'{"a": "' + HEAD + IMAGE + b"\\",
    b'{"a": "' + HEAD + IMAGE + b'\\"',
    b'{"a": "' + HEAD + IMAGE + b'"',
    b'{"a": "' + HEAD + IMAGE + b"\n" + b'"}',
    b'{"a": "' + HEAD + IMAGE + b"\x1f" + b'"}',
    b'{"a": "' + HEAD + IMAGE + b"\xff" + b'"}',
    b'{"a": "' + HEAD + IMAGE + b"\\x" + b'"}',
    b'{"a": "\xff"' + HEAD + IMAGE + b'"}',
    b'{"a": "text"' + HEAD + IMAGE + b'"}',
    b'{"a": "text\\\\"' + HEAD + IMAGE + b'"}',
    b'{"a": \\"' + HEAD + IMAGE + b'"}',
    b'["' + HEAD + IMAGE + b'"' + HEAD + IMAGE + b'"]',
    b'["' + HEAD + IMAGE + b'""' + HEAD + IMAGE + b'"]',
    b'"' + HEAD,
    b'"' + HEAD[:3],
    b'"' * 700,
    b"\\" * 700,
    b'"data:' * 120,
    b'"data:;base64,' * 50,
    HEAD + IMAGE,
    (HEAD + IMAGE).decode().encode("utf-16"),
]


async def stream_of(chunks: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    """As Starlette streams: an empty chunk is the last."""
    for chunk in chunks:
        yield chunk
    yield b""


async def read(chunks: Iterable[bytes], min_lifted_bytes: int = SMALL) -> Body:
    return await read_body(stream_of(chunks), min_lifted_bytes=min_lifted_bytes)


def in_json(string: bytes) -> bytes:
    return b'{"url": "' + string + b'", "other": ["text", 1]}'


REST = len(in_json(b"")) - len(b'{"url": "') + 2  # from two bytes before the end of its first string on


def cuts(data: bytes) -> Iterable[list[bytes]]:
    """Every way to cut `data` in two, and in pieces of one size each."""
    for at in range(len(data) + 1):
        yield [data[:at], data[at:]]
    for size in (1, 2, 3, 5, 7, 64, 255, 256):
        yield [data[at : at + size] for at in range(0, len(data), size)]


def strings_of(data: bytes) -> list[str]:
    """All strings of a JSON text, names that come twice included, in order."""

    def walk(value: Any) -> list[str]:
        if isinstance(value, list | tuple):
            return [string for part in value for string in walk(part)]
        return [value] if isinstance(value, str) else []

    return walk(json.loads(data, object_pairs_hook=list))


def substituted(value: Any, urls: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {substituted(name, urls): substituted(part, urls) for name, part in value.items()}
    if isinstance(value, list):
        return [substituted(part, urls) for part in value]
    return urls.get(value, value) if isinstance(value, str) else value


def check_invariants(sent: bytes, body: Body) -> None:
    """What holds of every body, however it was cut."""
    assert len(sent) == body.num_bytes
    assert sent == body.restored(body.payloads)
    try:
        expected = msgspec.json.decode(sent)
    except (msgspec.DecodeError, RecursionError):
        with pytest.raises((msgspec.DecodeError, RecursionError)):
            msgspec.json.decode(body.json)
        return
    strings = dict(zip(strings_of(body.json), strings_of(sent), strict=True))
    urls = {reference: strings[reference] for reference in body.payloads}
    assert expected == substituted(msgspec.json.decode(body.json), urls)


@pytest.mark.parametrize("url", LIFTED, ids=range(len(LIFTED)))
async def test_a_long_base64_url_is_lifted_however_the_body_is_cut(url: bytes) -> None:
    sent = in_json(url)
    expected = json.loads(sent)["url"]
    for chunks in cuts(sent):
        body = await read(chunks)
        [(reference, payload)] = body.payloads.items()
        assert {"url": reference, "other": ["text", 1]} == json.loads(body.json)
        assert expected.split("base64,", 1)[1].encode() == payload.read()
        assert payload.is_base64
        check_invariants(sent, body)
        body.close()


@pytest.mark.parametrize("string", NOT_LIFTED, ids=range(len(NOT_LIFTED)))
async def test_nothing_else_is(string: bytes) -> None:
    sent = in_json(string)
    for chunks in cuts(sent):
        body = await read(chunks)
        assert (sent, {}) == (body.json, body.payloads)
        body.close()


@pytest.mark.parametrize("sent", BROKEN, ids=range(len(BROKEN)))
async def test_what_is_no_json_stays_none(sent: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(sent)
    for chunks in cuts(sent):
        body = await read(chunks)
        check_invariants(sent, body)
        body.close()


async def test_several_are_kept_apart() -> None:
    urls = [HEAD + base64.b64encode(bytes([number]) * 150) for number in range(3)]
    sent = b'{"a": ["' + b'" ,\n"'.join(urls) + b'"], "' + urls[0] + b'": "' + urls[1] + b'"}'
    for chunks in cuts(sent):
        body = await read(chunks)
        assert [url.removeprefix(HEAD) for url in (*urls, *urls[:2])] == [payload.read() for payload in body.payloads.values()]
        check_invariants(sent, body)
        first, second, *_ = body.payloads
        one = json.loads(body.restored([second]))
        assert [first, urls[1].decode()] == one["a"][:2]
        assert body.json == body.restored([]) == body.restored(["lifted:unknown:0"])
        body.close()


@pytest.mark.parametrize("num_bytes", [MIN_LIFTED_BYTES - 1, MIN_LIFTED_BYTES])
async def test_short_ones_stay(num_bytes: int) -> None:
    url = HEAD + b"A" * (num_bytes - len(HEAD))
    sent = in_json(url)
    body = await read_body(stream_of([sent[:40_000], sent[40_000:]]))

    assert (num_bytes == MIN_LIFTED_BYTES) == bool(body.payloads)
    assert sent == body.restored(body.payloads)
    body.close()


async def test_references_can_not_be_known_before() -> None:
    sent = in_json(LIFTED[0])
    bodies = [await read([sent]) for _ in range(2)]
    [first], [second] = (body.payloads for body in bodies)

    forged = in_json(first.encode())[:-1] + b', "image": "' + LIFTED[0] + b'"}'
    body = await read([forged])
    assert first != second
    assert first not in body.payloads
    assert first == json.loads(body.json)["url"]
    check_invariants(forged, body)
    for each in (*bodies, body):
        each.close()


async def test_a_short_body_is_handed_on_as_it_came() -> None:
    sent = in_json(b"text")
    body = await read([sent])

    assert body.json is sent
    assert (len(sent), {}) == (body.num_bytes, body.payloads)
    body.close()
    assert (await read([])).json == b""


async def test_nothing_of_a_body_is_in_its_repr() -> None:
    body = await read([in_json(LIFTED[0])])

    assert f"Body(num_bytes={body.num_bytes})" == repr(body)
    body.close()


PIECES = st.one_of(
    st.sampled_from([
        b'"', b"\\", b"/", b"\\/", b"{", b"}", b"[", b"]", b":", b",", b" ", b"\n", b"\\n", b"\\u0041", b"\xff", b"\xc3\xa9", b"\x7f", b"1",
        b'"data:', b'"data:;base64,', b'"data:image/png;base64,', b'"data:image\\/png;base64,', b"data:", b";base64,", b"AAAA", b"A/+=",
        b"A\\/", b"lifted:", b'", "', b'": "', b'\\"data:;base64,', b'\\\\"data:;base64,', b'["', b'"]',
    ]),
    st.binary(max_size=4),
)  # fmt: skip
STRINGS = st.lists(
    st.sampled_from(
        [*LIFTED[:2], *NOT_LIFTED[:6], b"data:;base64,AAAA/AAAA", b"data:;base64,A\\/A\\/", b"data:;base64,A/A\\/", b"text", b""]
    ),
    max_size=5,
)
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def cut(sent: bytes, sizes: list[int]) -> list[bytes]:
    """`sent` in pieces of these sizes, over and over."""
    chunks, at = [], 0
    while at < len(sent):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(sent[at : at + size])
        at += size
    return chunks


async def check(sent: bytes, sizes: list[int], min_lifted_bytes: int) -> int:
    body = await read(cut(sent, sizes), min_lifted_bytes)
    check_invariants(sent, body)
    body.close()
    return len(body.payloads)


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=30).map(b"".join), SIZES, st.integers(1, 40))
@example(b'["data:;base64,AAAA\\', [3], 1)
@example(b'"data:;base64,A/A\\/A"', [1], 1)
def test_any_bytes_can_be_put_back(sent: bytes, sizes: list[int], min_lifted_bytes: int) -> None:
    asyncio.run(check(sent, sizes, min_lifted_bytes))


@settings(max_examples=150, deadline=None)
@given(STRINGS, SIZES, st.integers(1, 40) | st.just(SMALL))
def test_any_json_says_the_same(strings: list[bytes], sizes: list[int], min_lifted_bytes: int) -> None:
    listed = b", ".join(b'"%b"' % string for string in strings)
    sent = b'{"key": [' + listed + b'], "' + b'": 1, "'.join(dict.fromkeys(strings)) + b'": {}}'

    num_lifted = asyncio.run(check(sent, sizes, min_lifted_bytes))
    if min_lifted_bytes == SMALL:
        assert sum(string in LIFTED for string in (*strings, *set(strings))) == num_lifted


@pytest.mark.long
@settings(max_examples=10_000, deadline=None)
@given(st.lists(PIECES, max_size=60).map(b"".join), SIZES, st.integers(1, 60))
def test_any_bytes_can_be_put_back_in_many_ways(sent: bytes, sizes: list[int], min_lifted_bytes: int) -> None:
    asyncio.run(check(sent, sizes, min_lifted_bytes))


async def test_what_turns_out_late_not_to_be_liftable_is_put_back_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEP_BYTES", 100)
    sent = in_json(HEAD + b"A/" * 2000 + b"\\n")
    most_at_once = 0
    written = 0

    async def watch() -> None:
        nonlocal most_at_once, written
        while True:
            most_at_once, written = max(most_at_once, num_read - written), num_read
            await asyncio.sleep(0)

    read_whole = Payload.read

    def counted(payload: Payload) -> bytes:
        nonlocal num_read
        num_read += payload.num_bytes
        return read_whole(payload)

    num_read = 0
    monkeypatch.setattr(Payload, "read", counted)
    watching = asyncio.ensure_future(watch())
    body = await read([sent[:-REST], sent[-REST:]])
    watching.cancel()

    assert sent == body.json
    assert (4000, 100) == (num_read, most_at_once)
    body.close()


class Gone(Exception):
    """Stands for whatever ends the reading."""


def num_open_files() -> int:
    return len(os.listdir("/dev/fd"))


@pytest.mark.parametrize("error", [ClientDisconnect, Gone])
async def test_nothing_is_left_open_when_reading_fails(error: type[Exception]) -> None:
    sent = in_json(LIFTED[0])

    async def broken() -> AsyncGenerator[bytes, None]:
        yield sent[:-REST]
        raise error

    gc.collect()
    before = num_open_files()
    gc.disable()  # what is not closed would be closed by the garbage collector, with a warning
    try:
        with pytest.raises(error) as caught:
            await read_body(broken(), min_lifted_bytes=SMALL)
        assert before == num_open_files()
        del caught
    finally:
        gc.enable()


async def test_nothing_is_left_open_when_the_reading_is_cancelled() -> None:
    sent = in_json(LIFTED[0])
    waiting = asyncio.Event()
    was_closed = False

    async def slow() -> AsyncGenerator[bytes, None]:
        nonlocal was_closed
        try:
            yield sent[:-REST]
            waiting.set()
            await asyncio.Event().wait()
        finally:
            was_closed = True

    gc.collect()
    before = num_open_files()
    reading = asyncio.ensure_future(read_body(slow(), min_lifted_bytes=SMALL))
    await waiting.wait()
    assert before + 1 == num_open_files()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert was_closed
    assert before == num_open_files()


async def test_the_source_is_closed_when_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    was_closed = False

    async def source() -> AsyncGenerator[bytes, None]:
        nonlocal was_closed
        try:
            yield in_json(LIFTED[0])
        finally:
            was_closed = True

    def no_room(file: PayloadFile, data: bytes) -> None:
        raise OSError("no room")

    monkeypatch.setattr(PayloadFile, "append", no_room)
    gc.collect()
    before = num_open_files()
    with pytest.raises(OSError, match="no room"):
        await read_body(source(), min_lifted_bytes=SMALL)
    assert was_closed
    assert before == num_open_files()


async def test_closing_gives_the_memory_back() -> None:
    gc.collect()
    before = num_open_files()
    body = await read([in_json(LIFTED[0])])
    [payload] = body.payloads.values()
    body.close()
    body.close()

    assert before == num_open_files()
    with pytest.raises(ValueError, match="closed"):
        payload.read()
