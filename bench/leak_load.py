"""What the leak measurement asks, and how its clients end.

Role: everything that is chosen by chance, from a seed. Requests go through the whole application, by ASGI, as a server would
bring them; each client leaves, stays, stalls or is thrown out at a moment of its own.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.types import ASGIApp, Message

from server.engine.base import EngineDelta, EngineHints, EngineRequest, Take
from server.engine.scripted.engine import ScriptedEngine
from server.engine.scripted.rules import Rule, Script
from server.engine.scripted.script import parse_script
from server.vocabulary.byte import ByteVocabulary

GIVES_UP: Final = "gives-up"
DIES: Final = "dies"
RARE: Final = ("calls-wrongly", "fails", "hangs", "slowly")
"""So seldom by chance that a short run might have none to their end."""
MODELS: Final = ("priced", "strict", "free")
_CLOSING: Final = [{"control": ["</response>", "</message>"]}, "stop"]
_THINKS: Final = [{"text": "I think of it. "}, {"control": ["</think>", "<response>"]}]
_PARAMETERS: Final = {"type": "object", "properties": {"days": {"type": "integer", "maximum": 9}}, "required": ["days"]}
_TOOL: Final = {"type": "function", "function": {"name": "forecast", "parameters": _PARAMETERS}}
_PREFIXES: Final = ("You are brief. " * 20, "You are kind. " * 8, "")
_BROKEN: Final[tuple[dict[str, Any], ...]] = (
    {"temperature": 9}, {"n": 0}, {"messages": []}, {"model": "nobody"}, {"cache_salt": "mine"}, {"max_tokens": 0},
    {"messages": [{"role": "user", "content": "long " * 20_000}]},
)  # fmt: skip


def _call(days: object) -> list[Any]:
    control = [{"call": {"tool": "forecast", "index": 1}}, {"argument": {"key": "days", "value": days}}, "</call>"]
    return [{"text": "Look."}, {"control": ["</response>", "<tools>", *control, "</tools>", "</message>"]}, "stop"]


def _rules() -> list[dict[str, Any]]:
    talk = [*_THINKS, {"repeat": {"times": 12, "of": [{"text": "word "}]}}, *_CLOSING]
    slow = [{"wait_ms": 80}, *_THINKS, {"repeat": {"times": 21, "of": [{"text": "word "}, {"wait_ms": 50}]}}, *_CLOSING]
    replies: list[tuple[str, list[Any], int, int]] = [
        ("talks", talk, 3, 4),
        ("at-once", talk, 1000, 0),
        ("slowly", slow, 4, 5),
        ("fails", [{"text": "I was go"}, "error"], 2, 3),
        ("fails-at-once", ["error"], 1, 0),
        ("hangs", [{"text": "I was go"}, "hang"], 2, 3),
        ("hangs-at-once", ["hang"], 1, 0),
        (GIVES_UP, talk, 3, 4),
        (DIES, [{"text": "I was go"}, "die"], 2, 3),
        ("calls-wrongly", [*_THINKS, *_call("soon")], 4, 4),
        ("calls-rightly", [*_THINKS, *_call(3)], 4, 4),
        ("calls-at-last", [*_THINKS, *_call("soon")], 4, 4),
    ]
    return [
        {"when": {"contains": f"[{word}]"}, "reply": reply, "tokens_per_step": step, "step_interval_ms": interval}
        for word, reply, step, interval in replies
    ]


WORDS: Final = {
    "talks": 40, "at-once": 12, "slowly": 8, "fails": 3, "fails-at-once": 2, "hangs": 2, "hangs-at-once": 1, GIVES_UP: 2,
    "calls-wrongly": 4, "calls-rightly": 6, "calls-at-last": 8, "whatever": 14,
}  # fmt: skip
"""How often each kind of answer is asked for; to `whatever` the engine has its own."""
ENDINGS: Final = {"stays": 52, "turn": 16, "moment": 10, "chunk": 10, "early": 3, "thrown_out": 4, "stalls": 5}


class _Moody:
    """A script; where a call is to fit at last, chance says when."""

    def __init__(self, script: Script, chance: random.Random) -> None:
        self._script = script
        self._chance = chance

    def rule_for(self, hints: EngineHints) -> tuple[int, Rule] | None:
        found = self._script.rule_for(hints)
        if "[calls-at-last]" in hints.last_user_text and self._chance.random() < 0.5:
            return self._script.rule_for(EngineHints(last_user_text="[calls-rightly]"))
        return found


@dataclass(slots=True)
class Asked:
    """One request as the engine had it. `num_cached_tokens` is None until its prompt has been read."""

    num_prompt_tokens: int
    num_cached_tokens: int | None = None
    num_output_tokens: int = 0
    was_taken: bool = True


class CountingEngine(ScriptedEngine):
    """The scripted engine, with counts of its own: of each gateway request what it was asked, in the order of first deltas."""

    def __init__(self, chance: random.Random, seats: int) -> None:
        vocabulary = ByteVocabulary()
        script: Any = _Moody(parse_script(_rules(), vocabulary), chance)
        super().__init__(vocabulary, script, seats=seats, context_length=16_384)
        self.asked: dict[str, list[Asked]] = {}
        self.first_cached: dict[str, int] = {}

    async def generate(self, request: EngineRequest, take: Take | None = None) -> AsyncGenerator[EngineDelta, None]:
        request_id = request.request_id.split(":")[1]
        asked = Asked(len(request.token_ids), was_taken=not self.dead)
        self.asked.setdefault(request_id, []).append(asked)

        def take_counted(token_ids: Sequence[int]) -> bool:
            is_taken = True  # also where that ends the answer
            try:
                is_taken = take is not None and take(token_ids)
            finally:
                asked.num_output_tokens += len(token_ids) if is_taken else 0
            return is_taken

        async with aclosing(super().generate(request, take_counted)) as deltas:
            async for delta in deltas:
                asked.num_output_tokens += len(delta.token_ids)
                if asked.num_cached_tokens is None:
                    asked.num_cached_tokens = delta.num_cached_tokens
                    self.first_cached.setdefault(request_id, delta.num_cached_tokens)
                yield delta
                if f"[{GIVES_UP}]" in request.hints.last_user_text and asked.num_output_tokens > 20:
                    raise asyncio.CancelledError


@dataclass(slots=True)
class Ask:
    """One request to come. `ending`: how its client ends; `when`: turns of the loop, seconds or chunks, as it needs."""

    request_id: str
    tenant: str
    body: bytes
    is_stream: bool
    ending: str
    when: float


@dataclass(slots=True)
class Got:
    """What a client got. `is_whole`: the response came to its end while the client was there."""

    ask: Ask
    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    num_chunks: int = 0
    is_whole: bool = False

    @property
    def is_answer(self) -> bool:
        """Whether it is an answer without an error."""
        end = b"data: [DONE]\n\n" if self.ask.is_stream else b"}"
        return self.is_whole and self.status == 200 and self.body.endswith(end)


def ask_of(chance: random.Random, request_id: str, tenants: Sequence[str], word: str | None = None) -> Ask:
    """One request by chance; with `word` one of that kind, by a tenant without limits who stays to the end."""
    given = word
    word = word or _one_of(chance, WORDS)
    wants_calls = word.startswith("calls")
    messages = [
        {"role": "system", "content": chance.choice(_PREFIXES)},
        {"role": "user", "content": f"[{word}] {chance.randrange(40)} " + "x" * chance.randrange(200)},
    ]
    body: dict[str, Any] = {
        "model": "strict" if wants_calls and chance.random() < 0.8 else chance.choice(MODELS),
        "messages": messages,
        "stream": chance.random() < 0.6,
        "n": chance.choice((1, 1, 1, 1, 2, 3)),
    }
    if wants_calls or chance.random() < 0.05:
        body["tools"] = [_TOOL]
    elif chance.random() < 0.08:
        body["response_format"] = {"type": "json_object"}
    for name, value, share in (
        ("max_tokens", chance.choice((1, 5, 20, 60, 400)), 0.5),
        ("stop", "rd w", 0.05),
        ("logprobs", True, 0.03),
        ("stream_options", {"include_usage": True} if body["stream"] else None, 0.3),
        ("service_tier", chance.choice(("auto", "priority", "flex")), 0.3),
        ("ignore_eos", True, 0.01),
    ):
        if chance.random() < share and value is not None:
            body[name] = value
    tenant, ending = chance.choice(tenants), _one_of(chance, ENDINGS)
    when = {"turn": chance.randrange(120), "thrown_out": chance.randrange(1, 120), "chunk": chance.randrange(1, 30)}.get(ending)
    if given is None and chance.random() < 0.03:
        body.update(chance.choice(_BROKEN))
    if given is not None:
        tenant, ending, when = "free", "stays", 0
        body = {**body, "model": "strict", "n": 1, "max_tokens": None, "stop": None, "ignore_eos": None}
    moment_s = chance.random() * 0.7 if when is None else float(when)
    return Ask(request_id, tenant, json.dumps(body).encode(), bool(body["stream"]), ending, moment_s)


def _one_of(chance: random.Random, shares: dict[str, int]) -> str:
    return chance.choices(tuple(shares), tuple(shares.values()))[0]


class Client:
    """Asks `app` one thing, and ends as it was told to."""

    def __init__(self, app: ASGIApp, ask: Ask, key: str) -> None:
        self._app = app
        self._ask = ask
        self._key = key
        self._gone = asyncio.Event()
        self._num_received = 0
        self.got = Got(ask)

    async def run(self) -> Got:
        """Ask, and be served to the end, or what is the end for this client."""
        ask = self._ask
        loop = asyncio.get_running_loop()
        headers = [
            (b"content-type", b"application/json"),
            (b"authorization", f"Bearer {self._key}".encode()),
            (b"x-request-id", ask.request_id.encode()),
        ]
        path = "/v1/chat/completions"
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http", "path": path,
            "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers, "state": {},
            "client": ("127.0.0.1", 4000), "server": ("127.0.0.1", 8000),
        }  # fmt: skip
        work: Any = self._app(scope, self._receive, self._send)
        served: asyncio.Task[None] = loop.create_task(work, name=ask.request_id)
        alarm = loop.call_later(ask.when, self._gone.set) if ask.ending == "moment" else None
        if ask.ending in ("turn", "thrown_out"):
            for _ in range(int(ask.when)):
                await asyncio.sleep(0)
            self._gone.set() if ask.ending == "turn" else served.cancel()
        with suppress(asyncio.CancelledError):
            await served
        if alarm is not None:
            alarm.cancel()
        return self.got

    async def _receive(self) -> Message:
        body, self._num_received = self._ask.body, self._num_received + 1
        if self._num_received == 1:
            return {"type": "http.request", "body": body[: len(body) // 2], "more_body": True}
        if self._num_received == 2 and self._ask.ending != "early":
            await asyncio.sleep(0)
            return {"type": "http.request", "body": body[len(body) // 2 :], "more_body": False}
        if self._ask.ending != "early" and not self.got.is_whole:
            await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        """As uvicorn: who is gone is sent nothing, and nobody is told."""
        if self._gone.is_set():
            return
        got, ask = self.got, self._ask
        if message["type"] == "http.response.start":
            got.status = message["status"]
            return
        got.body += message.get("body", b"")
        got.num_chunks += 1
        got.is_whole = not message.get("more_body", False)
        if ask.ending == "chunk" and got.num_chunks >= ask.when:
            self._gone.set()
        elif ask.ending == "stalls" and got.num_chunks % 3 == 0:
            await asyncio.sleep(ask.when / 10)
