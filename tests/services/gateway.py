"""Gateways of the tests' own: `k3-gateway serve` with the scripted engine in a process, which can be killed and started again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
ADMIN_KEY = "the-admin-key-of-a-process"
START_S = 60.0
LEASES = (
    "from server.admission.redis_store import RedisStore; "
    "RedisStore.__init__.__kwdefaults__.update(deadline_s={deadline_s}, lease_s={lease_s}, renew_s={renew_s}); "
    "from server.cli import main; main()"
)


class GatewayProcess:
    """One gateway. What it is configured with is in `config`; `settings` replace whole sections of it.

    `timing`: `deadline_s`, `lease_s` and `renew_s` of limits in Redis, where they are not to be those that ship.
    """

    def __init__(self, folder: Path, script: list[Any], *, timing: Mapping[str, float] | None = None, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "script.json").write_text(json.dumps(script))
        self.config = folder / "gateway.yaml"
        self.settings: dict[str, Any] = {
            "http": {"port": 0},
            "engine": {"kind": "scripted", "script": str(folder / "script.json")},
            "tenancy": {"admin_key": ADMIN_KEY},
            "storage": {"ledger_url": f"sqlite:///{folder}/gateway.db", "spool_path": f"{folder}/spool"},
            **settings,
        }
        run = ["-m", "server"] if timing is None else ["-c", LEASES.format(**timing)]
        self._command = [sys.executable, *run, "serve", "--config", str(self.config)]
        self.admin = {"authorization": f"Bearer {ADMIN_KEY}"}
        self.url = ""
        self.lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self.write()

    def write(self, **settings: Any) -> None:
        """Write the configuration, with these sections changed."""
        self.settings |= settings
        self.config.write_text(json.dumps(self.settings))

    @property
    def log(self) -> str:
        """What it has said since it was started last."""
        return "".join(self.lines)

    def start(self, *, waits: bool = True) -> GatewayProcess:
        """Start, or start again; returns when it is ready, or at once."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("K3GW_")}
        self._process = subprocess.Popen(self._command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        self.lines, self._ready = [], threading.Event()
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr, self.lines, self._ready), daemon=True)
        self._reader.start()
        if waits:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Until it has said where it is."""
        assert self._ready.wait(START_S), self.log
        found = re.search(r"base URL\s+(\S+)/v1", self.log)
        assert found, self.log
        self.url = found[1]

    @staticmethod
    def _read(stream: Any, lines: list[str], ready: threading.Event) -> None:
        for line in stream:
            lines.append(line)
            if "curl " in line:  # the banner's last line but one
                ready.set()
        ready.set()

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """As `kill -9`: nothing of it runs any more."""
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        if (process := self._process) is None:
            return 0
        process.send_signal(number)
        try:
            code = process.wait(30)
        finally:
            process.kill()
            self._reader.join(20)
            assert process.stderr is not None
            process.stderr.close()
            self._process = None
        return code

    def command(self, *arguments: str) -> str:
        """What another subcommand prints, with the same configuration."""
        command = [sys.executable, "-m", "server", *arguments, "--config", str(self.config)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert 0 == done.returncode, done.stderr
        return done.stdout

    def key_of(self, http: httpx.Client, tenant: str) -> str:
        """A new key of a tenant."""
        answer = http.post(f"{self.url}/admin/v1/keys", json={"tenant": tenant}, headers=self.admin)
        assert answer.is_success, answer.text
        return str(answer.json()["secret"])


@contextmanager
def running(*gateways: GatewayProcess) -> Iterator[None]:
    """All of them, started side by side; ended at the end, however often they were killed and started meanwhile."""
    try:
        for gateway in gateways:
            gateway.start(waits=False)
        for gateway in gateways:
            gateway.wait_ready()
        yield
    finally:
        for gateway in gateways:
            gateway.kill()
