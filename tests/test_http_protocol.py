"""Connections that are spoken on by hand: heads without end, requests sent ahead of their turn, and what is no HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from uvicorn.server import ServerState

from server.app import create_app
from server.http_protocol import MAX_HEAD_BYTES, HttpProtocol
from server.serving import server_config
from server.settings import Settings
from tests.conftest import LiveGateway, StartGateway

TOO_MUCH = b"a" * (2 * MAX_HEAD_BYTES)
HEADS = {
    "a long header": b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: " + TOO_MUCH + b"\r\n\r\n",
    "a header without end": b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: " + TOO_MUCH,
    "a name without end": b"GET /health HTTP/1.1\r\nhost: x\r\nx-a" + TOO_MUCH,
    "many headers": b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"x-a: b\r\n" * (MAX_HEAD_BYTES // 8) + b"\r\n",
    "headers without end": b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"x-a: b\r\n" * (MAX_HEAD_BYTES // 8),
    "a long address": b"GET /health?" + TOO_MUCH + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "an address without end": b"GET /health?" + TOO_MUCH,
}


def connect(gateway: LiveGateway) -> socket.socket:
    host, port = gateway.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def rest_of(connection: socket.socket) -> bytes:
    """Everything until the gateway closes the connection."""
    received = b""
    while data := connection.recv(65536):
        received += data
    return received


def request(gateway: LiveGateway, method: str, path: str, body: Any = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"content-length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in gateway.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


@pytest.mark.parametrize("pieces", [1, 50])
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_a_head_that_is_too_large_is_431_and_the_end(start_gateway: StartGateway, head: bytes, pieces: int) -> None:
    gateway = start_gateway()
    with connect(gateway) as connection:
        size = len(head) // pieces + 1
        for start in range(0, len(head), size):
            connection.sendall(head[start : start + size])
        top, _, body = rest_of(connection).partition(b"\r\n\r\n")

    assert top.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert {b"connection: close", b"content-type: application/json"} <= set(top.lower().split(b"\r\n"))
    assert b"\r\nx-request-id: " in top
    assert json.loads(body)["error"]["code"] == "headers_too_large"
    metrics = httpx.get(f"{gateway.url}/metrics").text
    assert 'k3gw_requests_total{api="",model="",outcome="invalid",tenant=""} 1.0' in metrics


def test_a_large_head_within_the_bound_is_served(start_gateway: StartGateway) -> None:
    headers = {f"x-{number}": "a" * 6000 for number in range(10)}

    with httpx.Client(base_url=start_gateway().url, headers=headers) as client:
        assert [client.get("/health").status_code for _ in range(3)] == [200] * 3, "counted over requests"


def test_a_body_does_not_count(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    body = {"model": "kimi-k3", "messages": [{"role": "user", "content": "x" * 10 * MAX_HEAD_BYTES}]}
    content = json.dumps(body).encode()
    pieces = [content[start : start + 1000] for start in range(0, len(content), 1000)]

    for sent in (content, iter(pieces)):
        response = httpx.post(f"{gateway.url}/v1/chat/completions", content=sent, headers=gateway.headers)
        assert response.status_code == 200


def test_trailers_count_too(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    for trailers in (b"x-a: " + TOO_MUCH, b"x-a: b\r\n" * (MAX_HEAD_BYTES // 8)):
        with connect(gateway) as connection:
            connection.sendall(head + b"1\r\n{\r\n0\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")
            connection.sendall(trailers)
            assert rest_of(connection).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\na b: c\r\n\r\n"]
)
def test_what_is_no_http_is_a_400_in_the_apis_shape(start_gateway: StartGateway, garbage: bytes) -> None:
    with connect(start_gateway()) as connection:
        connection.sendall(garbage)
        top, _, body = rest_of(connection).partition(b"\r\n\r\n")

    assert top.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_a_broken_body_ends_its_request(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    head = request(gateway, "POST", "/v1/chat/completions").replace(b"content-length: 0", b"transfer-encoding: chunked")
    with connect(gateway) as connection:
        connection.sendall(head + b"1\r\n{\r\nnot a length\r\n")
        received = rest_of(connection)

    assert received.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert received.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_sent_ahead_is_not_answered_and_its_predecessor_is(start_gateway: StartGateway, stream: bool) -> None:
    text = [{"text": "Hello"}, {"wait_ms": 50}, {"text": "!"}, {"control": ["</response>", "</message>"]}, "stop"]
    gateway = start_gateway([{"reply": text}])
    body = {
        "model": "kimi-k3",
        "messages": [{"role": "user", "content": "x"}],
        "thinking": {"type": "disabled"},
        "stream": stream,
    }
    with connect(gateway) as connection:
        ahead = request(gateway, "GET", "/health") + request(gateway, "POST", "/x", "x" * 200_000)
        connection.sendall(request(gateway, "POST", "/v1/chat/completions", body) + ahead)
        received = rest_of(connection)

    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.count(b"HTTP/1.1 ") == 1
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b"}}")
    assert b'"content":"Hello!"' in received or stream


def test_requests_one_after_the_other_share_a_connection(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    with connect(gateway) as connection:
        for _ in range(3):
            connection.sendall(request(gateway, "GET", "/health") + b"\r\n")  # old clients end a request like that
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


class Reader(asyncio.Transport):
    """The far end of a connection, by what it leaves unread each time somebody looks; the last figure stays."""

    def __init__(self, *num_unread_bytes: int) -> None:
        super().__init__()
        self._left = list(num_unread_bytes)
        self.num_looks = 0
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        self.num_looks += 1
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]

    def abort(self) -> None:
        self.aborted.set()


def protocol_with(reader: asyncio.Transport) -> HttpProtocol:
    async def no_engine() -> Any:
        raise AssertionError

    config = server_config(create_app(Settings.model_validate({"http": {"write_timeout_s": 0.001}}), no_engine))
    config.load()
    protocol = HttpProtocol(config, ServerState(), {}, asyncio.get_running_loop())
    protocol.connection_made(reader)
    return protocol


async def test_a_reader_is_dropped_once_it_stops_not_while_it_is_slow() -> None:
    reader = Reader(90, 70, 50, 49, 20, 20)
    protocol_with(reader).pause_writing()
    await asyncio.wait_for(reader.aborted.wait(), 20)

    assert reader.num_looks == 6


@pytest.mark.parametrize("ending", ["reads on", "leaves"])
async def test_a_reader_that_reads_on_or_leaves_is_waited_for_no_more(ending: str) -> None:
    reader = Reader(90)
    protocol = protocol_with(reader)
    protocol.pause_writing()
    if ending == "reads on":
        protocol.resume_writing()
    else:
        protocol.connection_lost(ConnectionResetError())
    await asyncio.sleep(0.02)  # twenty timeouts

    assert not reader.aborted.is_set()
    assert reader.num_looks == 1


class Sender(asyncio.Transport):
    """The far end of a connection that sends, and whether it may."""

    def __init__(self) -> None:
        super().__init__()
        self.is_heard = True

    def pause_reading(self) -> None:
        self.is_heard = False

    def resume_reading(self) -> None:
        self.is_heard = True

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def write(self, data: object) -> None:
        pass


HEAD = b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: "
BEGINNING = HEAD + b"a" * (32 * 1024)
"""Of a request's head, which nobody answers yet."""


def connections(number: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[HttpProtocol], list[Sender]]:
    """Of one gateway, one of whose turns takes one `BEGINNING`."""
    monkeypatch.setattr("server.gateway.MAX_RECEIVED_BYTES", len(BEGINNING))
    monkeypatch.setattr("server.gateway.TURNS_OF_RECEIVING", 1)
    senders = [Sender() for _ in range(number)]
    protocols = [protocol_with(senders[0])]
    config = protocols[0].config
    for sender in senders[1:]:
        protocols.append(HttpProtocol(config, ServerState(), {}, asyncio.get_running_loop()))
        protocols[-1].connection_made(sender)
    return protocols, senders


def num_read(protocols: list[HttpProtocol]) -> list[int]:
    """Bytes of each that the parser has had."""
    return [protocol._num_idle_bytes for protocol in protocols]


async def test_what_many_send_at_once_is_read_a_turn_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    protocols, senders = connections(4, monkeypatch)
    for protocol in protocols:
        protocol.data_received(BEGINNING)
    for num_done in range(1, 5):
        is_done = [number < num_done for number in range(4)]
        assert is_done == [number > 0 for number in num_read(protocols)]
        assert is_done == [sender.is_heard for sender in senders]
        await asyncio.sleep(0)


async def test_little_waits_for_no_turn_and_never_overtakes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    protocols, _ = connections(3, monkeypatch)
    for protocol in protocols[:2]:
        protocol.data_received(BEGINNING)
    protocols[1].data_received(b"b")
    protocols[2].data_received(HEAD)
    assert [len(BEGINNING), 0, len(HEAD)] == num_read(protocols)
    await asyncio.sleep(0)
    assert len(BEGINNING) + 1 == num_read(protocols)[1]


async def test_who_leaves_while_waiting_is_read_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    protocols, senders = connections(3, monkeypatch)
    for protocol in protocols:
        protocol.data_received(BEGINNING)
    protocols[1].connection_lost(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [len(BEGINNING), 0, len(BEGINNING)] == num_read(protocols)
    assert senders[2].is_heard


def test_large_bodies_that_come_at_once_arrive_whole(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    sizes = [100_000 + 1000 * number for number in range(6)]

    def num_prompt_tokens(size: int) -> int:
        body = {"model": "default", "max_tokens": 1, "messages": [{"role": "user", "content": "a" * size}]}
        answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=gateway.headers, timeout=60)
        return int(answer.json()["usage"]["prompt_tokens"])

    few = num_prompt_tokens(1) - 1
    with ThreadPoolExecutor(len(sizes)) as threads:
        assert [few + size for size in sizes] == list(threads.map(num_prompt_tokens, sizes))


PIECES = [b"data: 1\n\n", b"x", b"\r\n0\r\n\r\n", b"y" * 70_000]


class Taker(Sender):
    """The far end of a connection, and what it got."""

    def __init__(self) -> None:
        super().__init__()
        self.got = b""

    def write(self, data: Any) -> None:
        self.got += data

    def get_write_buffer_size(self) -> int:
        return 0


async def answered(
    app: Any, request: bytes = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
) -> tuple[HttpProtocol, Taker]:
    """A connection whose request `app` has answered."""
    taker = Taker()
    protocol = protocol_with(taker)
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def whole(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(protocol, scope, send)
        except BaseException as error:  # noqa: BLE001 - the server would only log it
            ended.set_exception(error)
        else:
            ended.set_result(None)

    protocol.app = whole
    protocol.data_received(request)
    await asyncio.wait_for(ended, 20)
    return protocol, taker


def start(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": [*headers, (b"date", b"then")]}


def body(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


@pytest.mark.parametrize("written", [[], [0], [1, 2], [0, 1, 2, 3]])
async def test_pieces_written_at_once_are_those_that_would_be_sent(written: list[int]) -> None:
    async def app(protocol: HttpProtocol, scope: Any, send: Any) -> None:
        await send(start())
        for number, piece in enumerate(PIECES):
            if number in written:
                assert scope["state"]["write"](piece)
            else:
                await send(body(piece))
        await send(body(b"", more=False))

    async def plain(protocol: HttpProtocol, scope: Any, send: Any) -> None:
        await send(start())
        for piece in PIECES:
            await send(body(piece))
        await send(body(b"", more=False))

    (_, by_writing), (_, by_sending) = await answered(app), await answered(plain)

    assert by_sending.got == by_writing.got
    assert by_writing.got.endswith(b"\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "when", ["before the head", "with a length", "while it does not read", "once it has left", "after the end"]
)
async def test_what_has_to_be_sent_is_not_written(when: str) -> None:
    async def app(protocol: HttpProtocol, scope: Any, send: Any) -> None:
        write = scope["state"]["write"]
        if when == "before the head":
            assert not write(b"x")
        await send(start((b"content-length", b"1")) if when == "with a length" else start())
        if when == "with a length":
            assert not write(b"x")
            await send(body(b"x", more=False))
            return
        assert write(b"x")
        if when == "while it does not read":
            protocol.pause_writing()
            assert not write(b"y")
            protocol.resume_writing()
            assert write(b"z")
        if when == "once it has left":
            protocol.connection_lost(None)
            assert not write(b"y")
            return
        await send(body(b"", more=False))
        assert not write(b"y")

    _, taker = await answered(app)

    assert b"y" not in taker.got.partition(b"\r\n\r\n")[2]


class Connection(Sender):
    """The far end of a connection that sends, and closes."""

    def get_write_buffer_size(self) -> int:
        return 0


POST = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"


@pytest.mark.parametrize("when", ["before", "while", "after"])
async def test_who_wants_to_know_is_told_once_that_a_client_has_left(when: str) -> None:
    connection = Connection()
    protocol = protocol_with(connection)
    told: list[str] = []
    has_read, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        has_read.set()
        await go_on.wait()
        watch = scope["state"]["watch"]
        watch(lambda: told.append("left"))
        if when == "while":
            protocol.connection_lost(None)
            assert ["left"] == told
        await asyncio.sleep(0)
        if when == "after":
            watch(None)
            protocol.connection_lost(None)
        ended.set()

    protocol.app = app
    protocol.data_received(POST % 1 + b"x")
    await has_read.wait()
    if when == "before":
        protocol.connection_lost(None)
    go_on.set()
    await ended.wait()

    assert ([] if when == "after" else ["left"]) == told


async def test_a_client_whose_large_body_was_read_is_heard_when_it_leaves() -> None:
    """A large body stops what is received until it is taken; what comes afterwards must be noticed all the same."""
    connection = Connection()
    protocol = protocol_with(connection)
    heard: list[bool] = []
    has_begun, ended = asyncio.Event(), asyncio.Event()
    size = 3 * MAX_HEAD_BYTES

    async def app(scope: Any, receive: Any, send: Any) -> None:
        num_bytes = 0
        has_begun.set()
        while num_bytes < size:
            num_bytes += len((await receive())["body"])
        heard.append(connection.is_heard)
        scope["state"]["watch"](lambda: None)
        heard.append(connection.is_heard)
        ended.set()

    protocol.app = app
    protocol._read(POST % size)
    await has_begun.wait()
    protocol._read(b"x" * size)
    await asyncio.wait_for(ended.wait(), 20)

    assert [False, True] == heard
