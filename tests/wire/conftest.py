"""Live gateways for real clients: the scripted engine in a thread, and real vLLM in a process of its own, started as a user would.

`target` is both, one after the other; the scripted one knows the same questions as the demo model, so one test fits both.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.wire.real_tenants import RealTenants, write_config

ROOT = Path(__file__).resolve().parents[2]
KEY = "k3gw-wire-key-0123456789"
START_TIMEOUT_S = 400.0
STOP_TIMEOUT_S = 60.0
_BASE_URL = re.compile(r"base URL\s+(\S+)")


@dataclass(frozen=True)
class Target:
    """A gateway to talk to, and what can be asked of it: with `OFF` all but `THINK`, which is asked with reasoning on."""

    base_url: str
    key: str
    model: str = "kimi-k3"
    pid: int | None = None
    log: list[str] = field(default_factory=list, repr=False, compare=False)

    CAPITAL = "What is the capital of France?"
    THINK = "What is the capital of France? Think first."
    HELLO = "Say hello."
    JSON = "What is the capital of France? Answer as JSON."
    WEATHER = "What is the weather in Paris?"
    TWO_CITIES = "What is the weather in Paris and in Rome?"
    OFF: Any = field(default_factory=lambda: {"thinking": {"type": "disabled"}}, init=False)

    @property
    def url(self) -> str:
        """The server's address, without a path."""
        return self.base_url.removesuffix("/v1")

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def body(self, question: str, **fields: Any) -> dict[str, Any]:
        """A request body with `question`, greedy and without reasoning unless `fields` say otherwise."""
        messages = [{"role": "user", "content": question}]
        return {"model": self.model, "messages": messages, "temperature": 0, **self.OFF, **fields}


def _argument(key: str, value: Any) -> dict[str, Any]:
    return {"argument": {"key": key, "value": value}}


def _says(*steps: Any) -> list[Any]:
    return [*steps, "</response>", "</message>", "stop"]


def _calls(*calls: dict[str, Any]) -> list[Any]:
    control: list[Any] = ["</response>", "<tools>"]
    for index, arguments in enumerate(calls, start=1):
        call = {"call": {"tool": "get_weather", "index": index}}
        control += [call, *(_argument(key, value) for key, value in arguments.items()), "</call>"]
    return [{"control": [*control, "</tools>", "</message>"]}, "stop"]


def _rule(contains: str, reply: list[Any], **when: Any) -> dict[str, Any]:
    return {"when": {"contains": contains, **when}, "tokens_per_step": 3, "reply": reply}


RULES = [
    _rule("Think first", [{"text": "It is a known fact."}, "</think>", "<response>", *_says({"text": "It is Paris."})]),
    _rule("Answer as JSON", _says({"text": '{"city": "Paris", "country": "France"}'})),
    _rule("capital of France", _says({"text": "The capital of France is Paris."})),
    _rule("Say hello", _says({"text": "Hello! How can I help?"})),
    _rule("and in Rome", _calls({"city": "Paris"}, {"city": "Rome"}), after_tools=0),
    _rule("and in Rome", _says({"text": "Sunny in both, 21 degrees."}), last_role="tool"),
    _rule("weather in Paris", _calls({"city": "Paris"}), after_tools=0),
    _rule("weather in Paris", _says({"text": "It is sunny in Paris, 21 degrees."}), last_role="tool"),
]


@pytest.fixture
def scripted(start_gateway: Callable[..., Any]) -> Target:
    gateway = start_gateway(RULES)
    return Target(f"{gateway.url}/v1", gateway.headers["authorization"].removeprefix("Bearer "))


class Output:
    """What a process writes, read by a thread so that it never stands still; `lines` are complete after `join`."""

    def __init__(self, stream: Any) -> None:
        self.lines: list[str] = []
        self.base_url: str | None = None
        self.ready = threading.Event()
        self._stream = stream
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._stream:
            self.lines.append(line)
            if found := _BASE_URL.search(line):
                self.base_url = found[1]
                self.ready.set()
        self.ready.set()

    def join(self) -> None:
        self._thread.join(STOP_TIMEOUT_S)


@pytest.fixture(scope="session")
def vllm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's one gateway with real vLLM keeps its configuration, store and spool."""
    return tmp_path_factory.mktemp("vllm-gateway")


@pytest.fixture(scope="session")
def vllm_gateway(demo_model: Path, vllm_folder: Path) -> Iterator[Target]:
    """The session's one gateway with real vLLM, as `k3-gateway serve` runs it, with the tenants of `real_tenants`.

    At the end it must stop in order, and whatever clients did to it, nothing of that was an error of the gateway.
    """
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    command = [sys.executable, "-m", "server", "serve", "--config", str(write_config(vllm_folder)), "--profile", "cpu-demo"]
    command += ["--model", str(demo_model), "--port", "0"]
    environment = {**os.environ, "K3GW_TENANCY__KEY": KEY}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        output = Output(process.stderr)
        try:
            assert output.ready.wait(START_TIMEOUT_S), f"not ready after {START_TIMEOUT_S} s: {output.lines[-5:]}"
            assert output.base_url is not None, "the gateway ended:\n" + "".join(output.lines)
            assert any("ready after" in line for line in output.lines)
            yield Target(output.base_url, KEY, pid=process.pid, log=output.lines)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            output.join()
        assert 0 == process.returncode, "".join(output.lines[-20:])
        faults = [number for number, line in enumerate(output.lines) if "[error" in line or "Traceback" in line]
        assert [] == faults, "".join(output.lines[faults[0] - 3 : faults[0] + 50])


@pytest.fixture
def tenants(vllm_gateway: Target, vllm_folder: Path, http: httpx.Client) -> RealTenants:
    return RealTenants(vllm_gateway, vllm_folder, http)


@pytest.fixture(params=["scripted", pytest.param("vllm", marks=pytest.mark.vllm)])
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.getfixturevalue("scripted" if request.param == "scripted" else "vllm_gateway")
    return found


@pytest.fixture
def client(target: Target) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=target.base_url, api_key=target.key, max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
async def async_client(target: Target) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=target.base_url, api_key=target.key, max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as client:
        yield client


@pytest.fixture
def weather_tool() -> dict[str, Any]:
    properties = {"city": {"type": "string"}}
    parameters = {"type": "object", "properties": properties, "required": ["city"]}
    function = {"name": "get_weather", "description": "Get the weather forecast for a city.", "parameters": parameters}
    return {"type": "function", "function": function}


Until = Callable[..., Any]


@pytest.fixture
def until() -> Until:
    """`until(look, timeout_s=…)`: what `look` returns once it is true; fails where it is not by then."""

    def until(look: Callable[[], Any], timeout_s: float = 15.0) -> Any:
        end_s = time.monotonic() + timeout_s
        while not (found := look()):
            assert time.monotonic() < end_s, f"not within {timeout_s} s"
            time.sleep(0.02)
        return found

    return until
