"""Tenants of a live gateway, what they ask over HTTP and what they get; the gateway's minutes and days go by when a test says so."""

from __future__ import annotations

import json
import re
import socket
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from server.admission.admission import Admission
from server.admission.memory import MemoryStore
from server.admission.redis_store import RedisStore
from server.clock import Clock, ManualClock
from server.engine.scripted.engine import ScriptedEngine
from server.engine.scripted.script import parse_script
from server.vocabulary.byte import ByteVocabulary
from tests.admission.gates import NOW_S, manual_time
from tests.conftest import LiveGateway
from tests.services.redis import RedisServer

END: list[Any] = [{"control": ["</response>", "</message>"]}, "stop"]
PRICE = {"input": 3.0, "cached_input": 0.3, "output": 15.0}
NANO = {"input": 3000, "cached_input": 300, "output": 15000}
"""The same in nano-USD a token."""


@dataclass
class Answer:
    """What came back. `frames`: of a stream, decoded, without `[DONE]`; `is_done`: whether that came."""

    status: int
    headers: httpx.Headers
    body: Any
    frames: list[Any] = field(default_factory=list)
    is_done: bool = False

    @property
    def error(self) -> dict[str, Any]:
        """The error, wherever it stands."""
        last = self.frames[-1] if self.frames else self.body
        error: dict[str, Any] = last["error"]
        return error

    @property
    def outcome(self) -> tuple[int, str | None]:
        """Status and the error's code."""
        return self.status, None if self.status == 200 else self.error["code"]

    @property
    def finish_reason(self) -> str | None:
        """Why the first choice ended."""
        if self.status != 200:
            return None
        choices = [choice for frame in self.frames or [self.body] for choice in frame.get("choices", ())]
        return next((choice["finish_reason"] for choice in choices if choice.get("finish_reason")), None)

    def limits(self, what: str) -> tuple[int, int]:
        """Limit and remaining, of `requests` or `tokens`; the reset is checked for its form."""
        reset = self.headers[f"x-ratelimit-reset-{what}"]
        assert re.fullmatch(r"(\d+h\d+m|\d+m)?\d+s", reset), reset
        return int(self.headers[f"x-ratelimit-limit-{what}"]), int(self.headers[f"x-ratelimit-remaining-{what}"])

    def reset_s(self, what: str) -> int:
        """When all of it is free again, in seconds."""
        parts = re.findall(r"(\d+)([hms])", self.headers[f"x-ratelimit-reset-{what}"])
        return sum(int(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts)

    @property
    def retry_after_s(self) -> int:
        return int(self.headers["retry-after"])


def read_answer(response: httpx.Response) -> Answer:
    """Of a response that was read whole."""
    if not response.headers["content-type"].startswith("text/event-stream"):
        return Answer(response.status_code, response.headers, response.json())
    *events, end = response.text.split("\n\n")
    assert "" == end, f"cut off in the middle of a frame: {end}"
    texts = [event.removeprefix("data: ") for event in events if not event.startswith(":")]
    assert "[DONE]" not in texts[:-1]
    is_done = texts[-1:] == ["[DONE]"]
    frames = [json.loads(text) for text in (texts[:-1] if is_done else texts)]
    return Answer(response.status_code, response.headers, None, frames, is_done)


class Customer:
    """One tenant, with one of its keys."""

    def __init__(self, http: httpx.Client, url: str, name: str, key: str, key_id: str | None = None) -> None:
        self.http = http
        self.url = url
        self.name = name
        self.key = key
        self.key_id = key_id
        self.headers = {"authorization": f"Bearer {key}"}

    def body(self, text: str, **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": text}]
        return {"model": "kimi-k3", "messages": messages, "thinking": {"type": "disabled"}, **fields}

    def chat(self, text: str = "hi", **fields: Any) -> Answer:
        """Ask, and read the whole answer."""
        url = f"{self.url}/v1/chat/completions"
        return read_answer(self.http.post(url, json=self.body(text, **fields), headers=self.headers))

    @contextmanager
    def stream(self, text: str = "hi", **fields: Any) -> Iterator[Iterator[bytes]]:
        """The pieces of a stream that has begun, after the first; it is left at the end of the block."""
        body = self.body(text, stream=True, **fields)
        with self.http.stream("POST", f"{self.url}/v1/chat/completions", json=body, headers=self.headers) as response:
            pieces = response.iter_raw()
            first = next(pieces)
            assert (200, True) == (response.status_code, first.startswith(b"data: ")), first
            yield pieces

    @contextmanager
    def connection(self, text: str = "hi", *, cut: int = 0, **fields: Any) -> Iterator[socket.socket]:
        """A connection on which a request was sent, but for the last `cut` bytes; it is closed at the end of the block."""
        content = json.dumps(self.body(text, **fields)).encode()
        address = urlsplit(self.url)
        lines = ["POST /v1/chat/completions HTTP/1.1", f"host: {address.netloc}", f"content-length: {len(content)}"]
        lines += [f"authorization: Bearer {self.key}", "", ""]
        with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
            connection.sendall("\r\n".join(lines).encode() + content[: len(content) - cut])
            yield connection

    def at_engine(self) -> list[dict[str, Any]]:
        """What the engine was asked for this tenant, oldest first."""
        recorded: list[dict[str, Any]] = self.http.get(f"{self.url}/debug/engine", headers=self.headers).json()["requests"]
        return recorded


class House:
    """A gateway whose limits go by `clock`, and are kept in memory or in Redis."""

    def __init__(
        self,
        script: list[Any],
        redis: RedisServer | None = None,
        *,
        clock: Clock | None = None,
        seats: int = 256,
        **settings: Any,
    ) -> None:
        vocabulary, self.redis = ByteVocabulary(), redis
        parsed = parse_script(script, vocabulary)
        settings = {"models": {"kimi-k3": {"price_per_million_tokens_usd": PRICE}}, **settings}
        if redis is not None:
            settings["storage"] = {"limits_url": redis.url, **settings.get("storage", {})}
        self.gateway = LiveGateway(lambda: ScriptedEngine(vocabulary, parsed, context_length=1 << 20, seats=seats), **settings)
        self.clock = clock or ManualClock(NOW_S)
        self._set_redis_time()
        inner = self.gateway.gateway
        if redis is not None:  # it waits long for Redis: the machine may be busy
            spent = inner.storage.spent
            inner.limits = RedisStore(redis.url, self.clock, deadline_s=10.0, lease_s=1e6, ledger_totals=spent)
        else:
            inner.limits = MemoryStore(self.clock)
        inner.admission = Admission(inner.limits, self.clock)
        self.gateway.start()
        self.url = self.gateway.url
        self.http = httpx.Client(timeout=180)
        self.path = f"{self.gateway.folder.name}/gateway.db"

    def advance(self, seconds: float) -> None:
        """Let time pass, for the limits alone; only where the clock is the house's own."""
        assert isinstance(self.clock, ManualClock)
        self.clock.advance(seconds)
        self._set_redis_time()

    def _set_redis_time(self) -> None:
        if self.redis is not None:
            self.redis.client.set("now_ms", self.clock.unix_ms())

    def stop(self) -> None:
        """Stop; whatever was counted was counted where it should be."""
        limits = self.gateway.gateway.limits
        self.http.close()
        self.gateway.stop()
        assert self.redis is None or (isinstance(limits, RedisStore) and limits.num_away == 0), "Redis was away meanwhile"

    def tenant(self, name: str | None = None, **settings: Any) -> Customer:
        """A tenant with these settings, new or changed, with a new key."""
        name = name or f"t-{uuid.uuid4().hex[:12]}"
        self.set(name, **settings)
        return self.customer(name)

    def customer(self, name: str) -> Customer:
        """A tenant that there is, with a new key."""
        answer = self.http.post(f"{self.url}/admin/v1/keys", json={"tenant": name}, headers=self.gateway.admin)
        assert answer.is_success, answer.text
        return Customer(self.http, self.url, name, answer.json()["secret"], answer.json()["id"])

    def set(self, name: str, **settings: Any) -> None:
        answer = self.http.put(f"{self.url}/admin/v1/tenants/{name}", json=settings, headers=self.gateway.admin)
        assert answer.is_success, answer.text

    def rows(self, customer: Customer, num: int) -> list[dict[str, Any]]:
        """The tenant's rows of the ledger, once there are `num`."""
        rows: list[dict[str, Any]] = wait_for(lambda: ledger_rows(self.path, customer.name), lambda rows: len(rows) >= num)
        assert num == len(rows), rows
        return rows


def ledger_rows(path: str, tenant: str | None = None) -> list[dict[str, Any]]:
    """What is in the ledger of an SQLite file now, one tenant's or all, in the order in which the requests ended."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute("SELECT * FROM ledger ORDER BY ended_unix_ms, arrived_unix_ms")]
    return [row for row in rows if tenant in (None, row["tenant"])]


def kept_rows(folder: Path, path: str | None = None) -> list[dict[str, Any]]:
    """What a gateway that has ended has left: in its database, or on the spool where that was too slow for the end.

    `folder`: of the spool; `path`: of the database, where that is elsewhere.
    """
    lines = [line for file in (folder / "spool").glob("*.rows") for line in file.read_text(encoding="utf-8").splitlines()]
    rows = [*ledger_rows(path or f"{folder}/gateway.db"), *(json.loads(line.partition(" ")[2]) for line in lines)]
    return list({row["id"]: row for row in rows}.values())


def wait_for(look: Callable[[], Any], is_there: Callable[[Any], Any] = bool, timeout_s: float = 15.0) -> Any:
    """What `look` returns once it is as wanted."""
    end_s = time.monotonic() + timeout_s
    while not is_there(found := look()):
        assert time.monotonic() < end_s, f"not within {timeout_s} s: {found}"
        time.sleep(0.01)
    return found


@contextmanager
def open_house(script: list[Any], **settings: Any) -> Iterator[House]:
    """A house for the length of a block."""
    house = House(script, **settings)
    try:
        yield house
    finally:
        house.stop()


def make_house(script: list[Any], redis: RedisServer | None, **settings: Any) -> Iterator[House]:
    """A house of the caller's own, to be made a fixture."""
    with pytest.MonkeyPatch.context() as patch:
        manual_time(patch)
        house = House(script, redis, **settings)
        try:
            yield house
        finally:
            house.stop()
