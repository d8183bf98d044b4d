"""The client of the measurements counts what it gets, whatever the pieces that it comes in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import uvloop

from bench.core_plan import CorePlan, Plan
from bench.load import Load, Measured, connect, measure, percentile

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
FRAMES = [b"data: role\n\n", b"data: a\n\n", b"data: b\n\n", b"data: end\n\n", b"data: [DONE]\n\n"]
CHUNKS = b"".join(b"%x\r\n%b\r\n" % (len(frame), frame) for frame in FRAMES)
STREAM = HEAD + CHUNKS + b"0\r\n\r\n"
WHOLE = b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"data: ": 1}'
LOAD = Load(num_streams=1, num_tokens=2, num_requests=3, model="m", key="k")


class NoProcess:
    cpu_s = 0.0


@asynccontextmanager
async def serving(answer: bytes, pieces: Sequence[int] = ()) -> AsyncGenerator[int, None]:
    """Answers each request with `answer`, cut at `pieces`, on connections that stay open; yields the port."""
    handlers: list[asyncio.Task[None]] = []

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
                for begin, end in zip([0, *pieces], [*pieces, len(answer)], strict=True):
                    writer.write(answer[begin:end])
                    await writer.drain()
                    await asyncio.sleep(0)
        writer.close()
        await writer.wait_closed()

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.ensure_future(one(reader, writer)))

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.wait_for(asyncio.gather(*handlers), 20)


def test_it_runs_on_the_loop_of_the_measurements() -> None:
    async def run() -> Measured:
        async with serving(STREAM) as port:
            return await measure(NoProcess(), port, LOAD)

    assert 3 == uvloop.run(run()).num_requests


@pytest.mark.parametrize("pieces", [[], list(range(1, len(STREAM))), [len(HEAD)], [len(STREAM) - 3], [20, 80]])
async def test_every_event_is_counted_once(pieces: list[int], tmp_path: Path) -> None:
    plan = CorePlan(tmp_path / "plan")
    async with serving(STREAM, pieces) as port:
        load = Load(num_streams=2, num_tokens=2, num_requests=5, model="m", key="k", plan=plan)
        measured = await measure(NoProcess(), port, load)
    assert 5 * len(FRAMES) == measured.num_frames
    assert 5 * 2 == measured.num_chunks == measured.num_tokens == plan.num_delivered
    assert 5 == len(measured.ttft_s) == len(measured.latency_s) == measured.num_requests


async def test_a_whole_answer_ends_with_its_length() -> None:
    async with serving(WHOLE, [5, 43]) as port:
        measured = await measure(NoProcess(), port, LOAD)
    assert 3 == measured.num_requests
    assert 0 == measured.num_frames


@pytest.mark.parametrize("answer", [b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", b"HTTP/1.1 404 Not Found\r\n\r\n"])
async def test_an_error_is_no_measurement(answer: bytes) -> None:
    async with serving(answer) as port:
        connection = await connect(port, Measured(), LOAD)
        with pytest.raises(RuntimeError, match="the server refused"):
            await connection.ask(LOAD.request(0))
        connection.transport.close()


def test_a_plan_is_read_where_it_was_not_written(tmp_path: Path) -> None:
    told, reads = CorePlan(tmp_path / "plan"), CorePlan(tmp_path / "plan").reader
    assert (0.0, 0, 0, 0) == reads()
    told.set(Plan(40.0, 4, 2, 1))
    assert (40.0, 4, 2, 1) == reads()


@pytest.mark.parametrize(("part", "value"), [(0, 1.0), (50, 3.0), (99, 5.0), (100, 5.0)])
def test_percentiles_are_values_that_were_seen(part: float, value: float) -> None:
    assert value == percentile([5.0, 1.0, 4.0, 2.0, 3.0], part)
