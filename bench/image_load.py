"""Clients: those who send images, in a process of their own, and those who read streams.

`python -m bench.image_load --port PORT` keeps `--in-flight` requests under way from a line on standard input to the next one, and
then prints what became of them.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import random
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.image_files import Bodies, Picture

IMAGE_TOKENS: Final = 8
STREAM_TOKENS: Final = 1_000_000


class Senders:
    """`num_in_flight` threads, each with one request after the other while `is_on`."""

    def __init__(self, port: int, key: str, bodies: Bodies, num_in_flight: int) -> None:
        self._port = port
        self._key = key
        self._bodies = bodies
        self._num_in_flight = num_in_flight
        self._threads: list[threading.Thread] = []
        self._is_on = False
        self._times_s: list[float] = []
        self._failures: list[str] = []

    def start(self) -> None:
        self._is_on, self._times_s, self._failures = True, [], []
        self._threads = [threading.Thread(target=self._send_on) for _ in range(self._num_in_flight)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> dict[str, Any]:
        """Wait for the last answers; what became of all."""
        num_requests = len(self._times_s)
        self._is_on = False
        for thread in self._threads:
            thread.join()
        return {
            "num_requests": num_requests,
            "num_all": len(self._times_s),
            "median_s": median(self._times_s or [0.0]),
            "num_failed": len(self._failures),
            "failure": self._failures[0] if self._failures else None,
        }

    def _send_on(self) -> None:
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        while self._is_on:
            pieces = self._bodies.next()
            begun_s = time.monotonic()
            try:
                length = {"content-length": str(sum(map(len, pieces)))}
                connection.request("POST", "/v1/chat/completions", iter(pieces), {**headers, **length})
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self._failures.append(repr(error))
                connection.close()
                continue
            if answer.status == 200 and text.endswith(b"data: [DONE]\n\n"):
                self._times_s.append(time.monotonic() - begun_s)
            else:
                self._failures.append(f"{answer.status} {text[-300:]!r}")
        connection.close()


@dataclass
class Streams:
    """Readers of answers that come a token at a time. `gaps_s`: between tokens, since `take` was called last."""

    gaps_s: list[float] = field(default_factory=list)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def open(self, port: int, key: str, num_streams: int, interval_s: float) -> None:
        """Begin them, spread over a token's time."""
        for number in range(num_streams):
            self._tasks.append(asyncio.create_task(self._read(port, key, number)))
            await asyncio.sleep(interval_s * random.uniform(0.5, 1.5) / num_streams)

    def take(self) -> list[float]:
        gaps_s, self.gaps_s = self.gaps_s, []
        return gaps_s

    async def close(self) -> None:
        """Leave. Raises what a reader met."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        for writer in self._writers:
            writer.close()
        self._tasks, self._writers = [], []

    async def _read(self, port: int, key: str, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self._writers.append(writer)
        message = {"role": "user", "content": f"Say the letter, for the {number}th time."}
        wanted = {"model": "default", "messages": [message], "max_tokens": STREAM_TOKENS, "stream": True, "ignore_eos": True}
        body = json.dumps(wanted)
        head = f"host: localhost\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
        status = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in status[:20]:
            raise RuntimeError(f"the server refused: {status!r} {await reader.read(2000)!r}")
        last_s = 0.0
        while data := await reader.read(65536):
            now_s = time.monotonic()
            if num_frames := data.count(b"data: "):
                if last_s:
                    self.gaps_s += [now_s - last_s, *[0.0] * (num_frames - 1)]
                last_s = now_s
        raise RuntimeError("a stream has ended")


def be_nice(niceness: int) -> None:
    """Of this process; and of its session, where Linux groups by them, if that is its own."""
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(niceness), encoding="ascii")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the images."""
    parser.add_argument("--in-flight", type=int, default=20)
    parser.add_argument("--images", type=int, default=1, help="of each request")
    parser.add_argument("--width", type=int, default=1900)
    parser.add_argument("--height", type=int, default=1800)
    parser.add_argument("--size", type=int, default=10_000_000, help="bytes of an image, at most; what is left has one colour")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--nice", type=int, default=0)
    add_options(parser)
    options = parser.parse_args()
    be_nice(options.nice)
    bodies = Bodies(Picture(options.width, options.height, options.size), options.images, IMAGE_TOKENS)
    senders = Senders(options.port, options.key, bodies, options.in_flight)
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        if number % 2:
            print(json.dumps(senders.stop()), flush=True)
        else:
            senders.start()


if __name__ == "__main__":
    main()
