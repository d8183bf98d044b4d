"""The gateway of `bench.metrics` in a process of its own, which takes metrics off and on again at SIGUSR1."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import uvicorn
import uvloop

from bench.load import free_port
from server import choice, environment, logs
from server.app import create_app
from server.engine.base import Engine
from server.engine.profiles import load_profile
from server.engine.scripted.engine import ScriptedEngine
from server.engine.scripted.script import parse_script
from server.gateway import Gateway
from server.metrics.recorder import Recorder
from server.pace import Pace
from server.record import GenerationRecord
from server.sections import LogSettings
from server.serving import server_config
from server.settings import Settings
from server.vocabulary.byte import ByteVocabulary

KEY: Final = "k3gw-bench-key-0123456789"
ADMIN_KEY: Final = "the-bench-admin-key-0123456789"
MODEL: Final = "kimi-k3"
STEP_S: Final = 0.04
_TEXT: Final = "The gateway takes a request, renders the prompt, asks the engine for tokens and sends every new piece of text. "


class NoPace(Pace):
    """Notes nothing; tells the time, which a choice needs anyway."""

    __slots__ = ()

    def go_on(self) -> float:
        return self._now_s()

    def ask(self) -> None:
        """Nothing."""

    def came(self, num_new: int) -> float:
        return self._now_s()


class NoRecorder(Recorder):
    """Counts nothing."""

    def started(self, record: GenerationRecord) -> None:
        """Nothing."""

    def ended(self, record: GenerationRecord) -> None:
        """Nothing."""

    def refused(self, record: GenerationRecord) -> None:
        """Nothing."""


class Server:
    """One gateway in a process of its own."""

    def __init__(self, model: Path | None = None, *, step_s: float = 0.0) -> None:
        self.port = free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="k3gw-bench-")
        options = ["--port", str(self.port), "--folder", self._folder.name, "--step-s", str(step_s)]
        command = [sys.executable, "-m", "bench.metrics_server", *options]
        if model is not None:
            command += ["--model", str(model)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.pid = self.process.pid

    def wait_ready(self) -> None:
        """Return when it serves."""
        assert self.process.stdout is not None
        if not any(line.startswith("ready") for line in self.process.stdout):
            raise RuntimeError("the gateway did not start")

    def switch(self) -> None:
        """Take metrics off, or on again. Returns when that is so; nothing may be under way."""
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGUSR1)
        self.process.stdout.readline()

    @property
    def cpu_s(self) -> float:
        """CPU seconds that it has used, to the nanosecond. Source: `clock_getcpuclockid(3)` on Linux."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._folder.cleanup()


def _app(model: Path | None, folder: Path, step_s: float) -> Any:
    """All controls on, as in `bench.stream`."""
    storage = {"ledger_url": f"sqlite:///{folder}/gateway.db", "spool_path": f"{folder}/spool"}
    limits = {"requests_per_minute": 10**9, "input_tokens_per_minute": 10**12, "output_tokens_per_minute": 10**12}
    tenants = {"default": {"limits": {**limits, "concurrent_requests": 10**6}, "budget": {"tokens_per_day": 10**14}}}
    tenancy = {"key": KEY, "admin_key": ADMIN_KEY}
    settings = {"tenancy": tenancy, "log": {"level": "info"}, "storage": storage, "tenants": tenants}

    async def open_engine() -> Engine:
        if model is not None:
            from bench.frontends import open_fake

            return open_fake(model)
        vocabulary = ByteVocabulary()
        rule = {"step_interval_ms": 1000 * step_s, "reply": [{"text": _TEXT}]}
        return ScriptedEngine(vocabulary, parse_script([rule], vocabulary))

    return create_app(Settings.model_validate(settings), open_engine)


async def _serve(app: Any, port: int) -> None:
    server = uvicorn.Server(server_config(app))
    gateway: Gateway = app.state.gateway
    gateway.on_ready = lambda: print("ready", flush=True)
    kinds = itertools.cycle([(NoPace, NoRecorder(gateway.settings.models)), (Pace, gateway.recorder)])

    def switch() -> None:
        choice.Pace, gateway.recorder = next(kinds)  # type: ignore[attr-defined]
        print("switched", flush=True)

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, switch)
    await server.serve(sockets=[socket.create_server(("127.0.0.1", port), backlog=4096)])


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--step-s", type=float, default=0.0)
    options = parser.parse_args()
    environment.apply(load_profile("cpu-demo").environment)
    logs.configure(LogSettings())
    if options.model is not None:
        from bench import fake_core

        fake_core.install(_TEXT)
    uvloop.run(_serve(_app(options.model, options.folder, options.step_s), options.port))


if __name__ == "__main__":
    main()
