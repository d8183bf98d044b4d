"""Streams driven by hand through ASGI: what is sent, when, and what happens when a client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from server.errors import DrainingError, EngineError, InvalidRequestError
from server.record import GenerationRecord
from server.streaming.answers import OpenAnswers
from server.streaming.sse import DONE, CollectedAnswer, EventStream, StreamWriter, silence_rounds

Frames = AsyncGenerator[bytes, None]


class Client:
    """The far end of an ASGI call: records what is sent, and leaves when told to. `watched`: the server says when."""

    def __init__(self, *, watched: bool = False) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self.got = asyncio.Event()
        self.state: dict[str, Any] = {"watch": self._watch} if watched else {}
        self.tell: Callable[[], None] | None = None

    def _watch(self, tell: Callable[[], None] | None) -> None:
        self.tell = tell

    def leave(self) -> None:
        if self.tell is None:
            self.gone.set()
        else:
            self.tell()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        self.got.set()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def call(response: EventStream | CollectedAnswer, client: Client) -> dict[str, Any]:
    scope: dict[str, Any] = {"type": "http", "state": client.state}
    await response(scope, client.receive, client.send)
    return scope


@pytest.fixture(params=[False, True], ids=["asgi", "watched"])
def watched(request: pytest.FixtureRequest) -> bool:
    """Whether the server says that a client leaves, or is to be asked for what comes."""
    return bool(request.param)


def stream(frames: Frames, interval_s: float = 60.0, answers: OpenAnswers | None = None) -> EventStream:
    async def open_frames(_: StreamWriter) -> Frames:
        return frames

    return EventStream(open_frames, answers or OpenAnswers(), rounds=silence_rounds(interval_s))


async def test_frames_go_out_as_they_come_and_the_stream_is_closed() -> None:
    async def frames() -> Frames:
        yield b"data: 1\n\n"
        yield b"data: 2\n\n"

    client = Client()
    await call(stream(frames()), client)

    assert [message["type"] for message in client.sent] == ["http.response.start"] + ["http.response.body"] * 3
    assert client.sent[0]["status"] == 200
    assert dict(client.sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream")
    assert client.body == b"data: 1\n\ndata: 2\n\n"
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_an_error_before_the_first_frame_is_raised_and_nothing_is_sent() -> None:
    async def frames() -> Frames:
        raise InvalidRequestError("no")
        yield b""

    client = Client()
    with pytest.raises(InvalidRequestError):
        await call(stream(frames()), client)

    assert client.sent == []


@pytest.mark.parametrize(
    ("error", "words"), [(EngineError("the engine failed"), b"the engine failed"), (KeyError("secret"), b"logged")]
)
async def test_an_error_after_the_first_frame_is_one_frame_and_the_end(error: Exception, words: bytes) -> None:
    async def frames() -> Frames:
        yield b"data: 1\n\n"
        raise error

    client = Client()
    scope = await call(stream(frames()), client)

    first, last = client.body.split(b"\n\n")[:2]
    assert first == b"data: 1"
    assert last.startswith(b'data: {"error":{"message":')
    assert words in last
    assert b"secret" not in client.body
    assert b"[DONE]" not in client.body
    assert client.sent[-1]["more_body"] is False
    assert scope["state"]["error"].status == 500


async def test_silence_is_filled_with_comments_and_opens_the_stream() -> None:
    release = asyncio.Event()

    async def frames() -> Frames:
        await release.wait()
        yield b"data: 1\n\n"

    client = Client()
    task = asyncio.ensure_future(call(stream(frames(), interval_s=0.001), client))
    await client.got.wait()
    release.set()
    await task

    assert client.sent[0]["type"] == "http.response.start"
    assert client.body.startswith(b": keep-alive\n\n")
    assert client.body.endswith(b"data: 1\n\n")


async def _leave(
    make: Callable[[Callable[[], Awaitable[None]]], EventStream | CollectedAnswer], watched: bool
) -> tuple[Client, list[str]]:
    """Runs a response whose work never ends, lets the client leave, and returns what the work noticed."""
    noticed: list[str] = []
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            noticed.append("cancelled")
            raise

    client = Client(watched=watched)
    task = asyncio.ensure_future(call(make(work), client))
    await begun.wait()
    assert (client.tell is not None) == watched
    client.leave()
    with pytest.raises(ClientDisconnect):
        await task
    assert client.tell is None
    return client, noticed


async def test_a_client_that_leaves_a_stream_cancels_the_work(watched: bool) -> None:
    closed: list[bool] = []

    def make(work: Callable[[], Awaitable[None]]) -> EventStream:
        async def frames() -> Frames:
            try:
                yield b"data: 1\n\n"
                await work()
            finally:
                closed.append(True)

        return stream(frames())

    client, noticed = await _leave(make, watched)

    assert noticed == ["cancelled"]
    assert closed == [True]
    assert client.body == b"data: 1\n\n"


async def test_a_client_that_leaves_before_the_first_frame_cancels_the_work(watched: bool) -> None:
    def make(work: Callable[[], Awaitable[None]]) -> EventStream:
        async def frames() -> Frames:
            await work()
            yield b""

        return stream(frames())

    client, noticed = await _leave(make, watched)

    assert noticed == ["cancelled"]
    assert client.sent == []


async def test_a_client_that_leaves_a_whole_answer_cancels_the_work(watched: bool) -> None:
    def make(work: Callable[[], Awaitable[None]]) -> CollectedAnswer:
        async def collect() -> bytes:
            await work()
            return b""

        return CollectedAnswer(collect, OpenAnswers())

    client, noticed = await _leave(make, watched)

    assert noticed == ["cancelled"]
    assert client.sent == []


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_once_the_outcome_is_known_ends_nothing(watched: bool, streamed: bool) -> None:
    record = GenerationRecord("r1", "acme", "kimi-k3", 0.0)
    client = Client(watched=watched)
    client.state["record"] = record

    async def finish() -> None:
        record.outcome, record.ended_s = "finished", 1.0
        client.leave()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def frames() -> Frames:
        await finish()
        yield DONE

    async def collect() -> bytes:
        await finish()
        return b"{}"

    await call(stream(frames()) if streamed else CollectedAnswer(collect, OpenAnswers()), client)

    assert (DONE if streamed else b"{}", "finished") == (client.body, record.outcome)


async def test_a_whole_answer_is_one_json_body() -> None:
    async def collect() -> bytes:
        return b'{"a":1}'

    client = Client()
    await call(CollectedAnswer(collect, OpenAnswers()), client)

    headers = dict(client.sent[0]["headers"])
    assert (headers[b"content-type"], headers[b"content-length"], client.body) == (b"application/json", b"7", b'{"a":1}')


async def test_errors_of_a_whole_answer_come_out_as_they_are() -> None:
    async def collect() -> bytes:
        raise EngineError("the engine failed")

    with pytest.raises(EngineError, match="the engine failed"):
        await call(CollectedAnswer(collect, OpenAnswers()), Client())


async def test_a_client_that_leaves_before_there_are_frames_cancels_the_work(watched: bool) -> None:
    def make(work: Callable[[], Awaitable[None]]) -> EventStream:
        async def open_frames(_: StreamWriter) -> Frames:
            await work()
            raise AssertionError

        return EventStream(open_frames, OpenAnswers(), rounds=silence_rounds(60.0))

    client, noticed = await _leave(make, watched)

    assert noticed == ["cancelled"]
    assert client.sent == []


async def test_an_error_before_there_are_frames_has_its_status_however_late_it_comes() -> None:
    async def open_frames(_: StreamWriter) -> Frames:
        await asyncio.sleep(0.02)
        raise InvalidRequestError("no")

    client = Client()
    with pytest.raises(InvalidRequestError):
        await call(EventStream(open_frames, OpenAnswers(), rounds=silence_rounds(0.001)), client)

    assert client.sent == []


async def test_a_frame_waits_for_a_comment_that_is_opening_the_stream() -> None:
    speak, read = asyncio.Event(), asyncio.Event()

    class Slow(Client):
        async def send(self, message: Any) -> None:
            if message["type"] == "http.response.start":
                self.got.set()
                await read.wait()
            self.sent.append(message)

    async def frames() -> Frames:
        await speak.wait()
        yield b"data: 1\n\n"

    client = Slow()
    task = asyncio.ensure_future(call(stream(frames(), interval_s=0.001), client))
    await client.got.wait()
    speak.set()
    await asyncio.sleep(0)
    read.set()
    await task

    assert [message["type"] for message in client.sent].index("http.response.start") == 0
    assert [message["type"] for message in client.sent].count("http.response.start") == 1
    assert client.body.count(b"data: 1\n\n") == 1


async def _end(begun: asyncio.Event, answers: OpenAnswers, response: EventStream | CollectedAnswer, client: Client) -> Any:
    """Runs a response whose work never ends, and ends all answers; returns the response's record."""
    record = GenerationRecord("r1", "acme", "kimi-k3", 0.0)
    scope: dict[str, Any] = {"type": "http", "state": {"record": record}}
    task = asyncio.ensure_future(response(scope, client.receive, client.send))
    await begun.wait()
    answers.end_all(lambda: DrainingError("the end"))
    try:
        await task
    finally:
        assert record.outcome == "rejected"
    return scope


async def test_a_stream_that_is_ended_from_outside_says_why() -> None:
    begun, answers, closed = asyncio.Event(), OpenAnswers(), []

    async def frames() -> Frames:
        try:
            yield b"data: 1\n\n"
            begun.set()
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    client = Client()
    scope = await _end(begun, answers, stream(frames(), answers=answers), client)

    assert closed == [True]
    assert client.body.startswith(b'data: 1\n\ndata: {"error":{"message":"the end"')
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert scope["state"]["error"].code == "draining"
    await answers.wait_none_left()


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_is_ended_before_its_first_byte_raises_the_reason(streamed: bool) -> None:
    begun, answers, client = asyncio.Event(), OpenAnswers(), Client()

    async def hang(*_: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    response = EventStream(hang, answers, rounds=silence_rounds(60.0)) if streamed else CollectedAnswer(hang, answers)
    with pytest.raises(DrainingError, match="the end"):
        await _end(begun, answers, response, client)

    assert client.sent == []
    await answers.wait_none_left()


async def test_answers_that_are_ended_together_have_errors_of_their_own() -> None:
    """One error that all raise would keep the frames, and all they hold, of them all."""
    answers, errors = OpenAnswers(), []

    async def work() -> None:
        try:
            async with answers.open({}):
                await asyncio.Event().wait()
        except DrainingError as error:
            errors.append(error)

    begun = [asyncio.ensure_future(work()) for _ in range(2)]
    await asyncio.sleep(0)
    answers.end_all(lambda: DrainingError("the end"))
    late = [asyncio.ensure_future(work()) for _ in range(2)]
    await asyncio.gather(*begun, *late)

    assert 4 == len(errors) == len(set(map(id, errors)))


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_has_its_outcome_is_not_ended(streamed: bool) -> None:
    """Time may be up between the last token and the last byte: the client must not be told otherwise than the ledger."""
    answers, client = OpenAnswers(), Client()
    record = GenerationRecord("r1", "acme", "kimi-k3", 0.0)

    def finish() -> None:
        record.outcome, record.ended_s = "finished", 1.0
        answers.end_all(lambda: DrainingError("the end"))

    async def frames() -> Frames:
        yield b"data: 1\n\n"
        finish()
        yield DONE

    async def collect() -> bytes:
        finish()
        return b"{}"

    response = stream(frames(), answers=answers) if streamed else CollectedAnswer(collect, answers)
    await response({"type": "http", "state": {"record": record}}, client.receive, client.send)

    assert (b"data: 1\n\n" + DONE if streamed else b"{}", "finished") == (client.body, record.outcome)


async def test_what_comes_after_the_end_is_refused() -> None:
    answers = OpenAnswers()
    answers.end_all(lambda: DrainingError("the end"))

    async def frames() -> Frames:
        yield b"data: 1\n\n"

    with pytest.raises(DrainingError):
        await call(stream(frames(), answers=answers), Client())
    await answers.wait_none_left()


async def test_a_task_that_is_cancelled_by_somebody_else_stays_cancelled() -> None:
    begun, answers = asyncio.Event(), OpenAnswers()

    async def frames() -> Frames:
        begun.set()
        await asyncio.Event().wait()
        yield b""

    task = asyncio.ensure_future(call(stream(frames(), answers=answers), Client()))
    await begun.wait()
    task.cancel()
    answers.end_all(lambda: DrainingError("the end"))
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("takes", [lambda _: True, lambda _: False, lambda frame: frame != b"two"])
async def test_what_the_server_writes_at_once_is_what_would_be_sent(takes: Callable[[bytes], bool]) -> None:
    async def frames() -> Frames:
        for frame in (b"one", b"two", b"three"):
            yield frame

    client = Client()

    def write(frame: bytes) -> bool:
        if not takes(frame):
            return False
        client.sent.append({"type": "written", "body": frame})
        return True

    scope: dict[str, Any] = {"type": "http", "state": {"write": write}}
    await stream(frames())(scope, client.receive, client.send)

    assert ["http.response.start", *(["written" if takes(frame) else "http.response.body" for frame in (b"one", b"two", b"three")]),
            "http.response.body"] == [message["type"] for message in client.sent]  # fmt: skip
    assert b"onetwothree" == client.body
