"""A gateway as a process: what it does from the signal that stops it to its exit."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from server.banner import key_hint
from server.context import Tenant
from server.serving import bind
from server.tenancy.keys import KeyTable
from tests.conftest import KEY

ROOT = Path(__file__).resolve().parents[1]
HEADERS = {"authorization": f"Bearer {KEY}"}
END = [{"control": ["</response>", "</message>"]}, "stop"]


class Process:
    """`k3-gateway serve` with the scripted engine, and what it says."""

    def __init__(self, folder: Path, reply: list[Any], drain_timeout_s: int) -> None:
        script = folder / "script.yaml"
        script.write_text(json.dumps([{"reply": reply}]), encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "server", "serve", "--engine", "scripted", "--script", str(script), "--port", "0"],
            cwd=folder,  # the store is made there
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "K3GW_TENANCY__KEY": KEY,
                "K3GW_HTTP__DRAIN_TIMEOUT_S": str(drain_timeout_s),
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(60), self.log
        self.url = re.findall(r"base URL\s+(\S+)/v1", self.log)[0]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if "base URL" in line:
                self._ready.set()
        self._ready.set()

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """The exit code."""
        code = self.process.wait(20)
        self._reader.join(20)
        return code

    def status_once_stopping(self, path: str) -> httpx.Response:
        """The answer once it is no more the usual one, on new connections."""
        end_s = time.monotonic() + 10
        while (response := httpx.get(self.url + path)).status_code == 200:
            assert time.monotonic() < end_s
        return response


Serve = Callable[[list[Any], int], Process]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    started: list[Process] = []

    def serve(reply: list[Any], drain_timeout_s: int) -> Process:
        started.append(Process(tmp_path, reply, drain_timeout_s))
        return started[-1]

    yield serve
    for one in started:
        one.process.kill()
        one.process.wait()
        assert one.process.stderr is not None
        one._reader.join(20)
        one.process.stderr.close()


def post(gateway: Process, **fields: Any) -> httpx.Response:
    body = {"model": "kimi-k3", "messages": [{"role": "user", "content": "x"}], "thinking": {"type": "disabled"}, **fields}
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=HEADERS, timeout=30)


class Asked:
    """A request in a thread of its own, and its answer."""

    def __init__(self, gateway: Process, num_said: int, **fields: Any) -> None:
        num_before = self._num_running(gateway, num_said)
        self._thread = threading.Thread(target=self._ask, args=(gateway,), kwargs=fields)
        self._thread.start()
        end_s = time.monotonic() + 20
        while self._num_running(gateway, num_said) < num_before + fields.get("n", 1):
            assert time.monotonic() < end_s

    def _ask(self, gateway: Process, **fields: Any) -> None:
        self._response = post(gateway, **fields)

    def _num_running(self, gateway: Process, num_said: int) -> int:
        recorded = httpx.get(f"{gateway.url}/debug/engine", headers=HEADERS).json()["requests"]
        return sum(request["num_generated_tokens"] >= num_said for request in recorded)

    def answer(self) -> httpx.Response:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self._response


def test_a_draining_gateway_finishes_what_it_has_and_sends_others_away(serve: Serve) -> None:
    gateway = serve([{"text": "Hello"}, {"wait_ms": 3000}, {"text": "!"}, *END], 30)
    streamed, whole = Asked(gateway, 5, stream=True), Asked(gateway, 5)
    gateway.stop()
    ready, health, refused = gateway.status_once_stopping("/ready"), httpx.get(f"{gateway.url}/health"), post(gateway)

    assert (health.status_code, ready.status_code, refused.status_code) == (200, 503, 503)
    assert ready.json()["error"]["code"] == refused.json()["error"]["code"] == "draining"
    assert min(int(response.headers["retry-after"]) for response in (ready, refused)) > 0
    assert streamed.answer().text.endswith("data: [DONE]\n\n")
    assert whole.answer().json()["choices"][0]["message"]["content"] == "Hello!"
    assert gateway.wait() == 0, gateway.log
    assert gateway.log.count("outcome=finished") == 2
    assert "Traceback" not in gateway.log


@pytest.mark.parametrize("drain_timeout_s", [0, 1])
def test_what_does_not_finish_ends_with_an_error(serve: Serve, drain_timeout_s: int) -> None:
    gateway = serve([{"text": "Hello"}, "hang"], drain_timeout_s)
    streamed, whole, many = Asked(gateway, 5, stream=True), Asked(gateway, 5), Asked(gateway, 5, stream=True, n=3)
    gateway.stop()

    for answer in (streamed.answer(), many.answer()):
        assert answer.status_code == 200
        *chunks, last, end = answer.text.split("\n\n")
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "draining"
        assert end == ""
        assert all('"choices"' in chunk for chunk in chunks)
    refused = whole.answer()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert int(refused.headers["retry-after"]) > 0
    assert gateway.wait() == 0, gateway.log
    assert gateway.log.count("outcome=rejected") == 3
    assert "outcome=cancelled" not in gateway.log
    assert "Traceback" not in gateway.log


def test_a_second_signal_ends_at_once(serve: Serve) -> None:
    gateway = serve(["hang"], 600)
    asked = Asked(gateway, 0)
    gateway.stop()
    gateway.status_once_stopping("/ready")
    begun_s = time.monotonic()
    gateway.stop()

    assert gateway.wait() == 0, gateway.log
    assert time.monotonic() - begun_s < 10
    assert asked.answer().status_code == 503
    assert "Traceback" not in gateway.log


def test_what_a_client_does_wrong_warns_nobody(serve: Serve) -> None:
    """Anybody could fill the log with it."""
    gateway = serve([], 600)
    upgrade = {"connection": "upgrade", "upgrade": "websocket"}
    assert httpx.get(f"{gateway.url}/health", headers=upgrade).status_code == 200
    assert httpx.get(f"{gateway.url}/health", headers={"x-a": "a" * 100_000}).status_code == 431
    gateway.stop()

    assert gateway.wait() == 0
    assert "WARNING" not in gateway.log
    assert "status=431" in gateway.log


OPENS_NO_ENGINE = """
import server.serving
from server.cli import main
from server.engine.profiles import ProfileError

async def open_engine():
    raise {error}("that is why")

server.serving.engine_opener = lambda settings: open_engine
main()
"""


@pytest.mark.parametrize(("error", "code"), [("ProfileError", 2), ("RuntimeError", 1)])
def test_a_mistake_in_the_profile_is_a_line_and_is_not_tried_again(tmp_path: Path, error: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPENS_NO_ENGINE.format(error=error), "serve", "--engine", "scripted", "--port", "0"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ("that is why" in done.stderr, code, code == 1) == (True, done.returncode, "Traceback" in done.stderr), done.stderr


@pytest.mark.parametrize("begun", [b"", b'{"model": "kimi-k3", ', b'{"model": "' + b"a" * 100_000])
def test_a_request_that_does_not_come_whole_holds_up_no_drain(serve: Serve, begun: bytes) -> None:
    """It would be refused when it has come: so it is told now, and may go elsewhere."""
    gateway = serve([], 600)
    head = "\r\n".join(f"{name}: {value}" for name, value in HEADERS.items())
    ask = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{head}\r\nexpect: 100-continue\r\ncontent-length: 999999\r\n\r\n"
    with socket.create_connection(("127.0.0.1", httpx.URL(gateway.url).port or 0), timeout=20) as client:
        client.sendall(ask.encode())
        assert client.recv(100).startswith(b"HTTP/1.1 100 "), "its body is being read"
        client.sendall(begun)
        gateway.stop()
        assert gateway.wait() == 0, gateway.log
        answer = b"".join(iter(lambda: client.recv(65536), b"")).decode()

    assert answer.startswith("HTTP/1.1 503 ")
    assert "\r\nretry-after: " in answer
    assert "\r\nconnection: close" in answer
    assert '"code":"draining"' in answer
    assert 1 == gateway.log.count("outcome=rejected")
    assert "Traceback" not in gateway.log


def test_an_idle_gateway_ends_at_once(serve: Serve) -> None:
    gateway = serve([], 600)
    with httpx.Client() as client:  # and a connection that stays open
        assert client.get(f"{gateway.url}/ready").status_code == 200
        gateway.stop()
        assert gateway.wait() == 0, gateway.log


def test_a_gateway_whose_reader_is_gone_ends_in_order(tmp_path: Path) -> None:
    """As in `serve 2>&1 | tee log`, where Ctrl-C ends `tee` first."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "server", "serve", "--engine", "scripted", "--port", "0"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=writer,
        stderr=writer,
    )
    os.close(writer)
    try:
        said = b""
        while b"curl " not in said:
            said += (more := os.read(reader, 4096))
            assert more, said
        os.close(reader)
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(20)
    finally:
        process.kill()
        process.wait()


class Keys:
    """As much of a key table as the banner asks for."""

    def __init__(self, num_keys: int, *tenants: str) -> None:
        self.num_keys = num_keys
        self._tenants = {name: Tenant(name) for name in tenants}

    def tenants(self) -> dict[str, Tenant]:
        return self._tenants


@pytest.mark.parametrize(
    ("key", "keys", "config", "hint"),
    [
        (None, Keys(0), None, None),
        ("$K3GW_TENANCY__KEY", Keys(0), None, None),
        ("k3gw-new", Keys(1, "default"), None, "k3gw-new"),
        ("$KEY", Keys(1, "acme", "default"), None, "the one that the first start printed; `… --tenant default` makes another"),
        ("$KEY", Keys(0, "acme"), "g.yaml", "there is none yet; `… --tenant acme --config g.yaml` makes one"),
        ("$KEY", Keys(2, "acme", "beta"), None, "one of yours; `… --tenant NAME` makes another"),
    ],
)
def test_the_banner_says_where_a_key_comes_from(key: str | None, keys: Keys, config: str | None, hint: str | None) -> None:
    """Never by a command that would fail, as for a tenant that there is not."""
    told = key_hint(key, cast(KeyTable, keys), config and Path(config))
    assert hint == (told and told.replace("k3-gateway keys create", "…"))


def test_an_address_that_can_not_be_listened_on_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            OSError, match=rf"^http\.port: can't listen on 127\.0\.0\.1:{port}: .*; choose another with `--port`$"
        ):
            bind("127.0.0.1", port)
    for host in ("192.0.2.1", "no-such-host.invalid", "1.2.3.4.5"):
        with pytest.raises(
            OSError, match=rf"^http\.host: can't listen on {re.escape(host)}:0: .*; choose another with `--host`$"
        ):
            bind(host, 0)


def test_a_gateway_that_takes_no_requests_yet_stops_at_once_and_speaks_of_no_answers(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "server", "serve", "--engine", "scripted", "--port", "0"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "K3GW_STORAGE__LEDGER_URL": "postgresql://127.0.0.1:1/ledger"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "store_away" in line:
            break
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=20)
    assert 0 == process.returncode
    assert ["stopping", "stopping the engine"] == [line for line in log.splitlines() if line.startswith("stopping")]
