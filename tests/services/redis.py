"""A redis-server of the tests' own: on a socket in a temporary folder, gone with the test module."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

START_S = 20.0


class RedisServer:
    """One server, which can be stopped and started again; it keeps nothing. `client` looks into it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "redis.sock"
        self.url = f"unix://{self._socket}"
        self.client = Redis(unix_socket_path=str(self._socket), decode_responses=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start, or start again; returns when it answers."""
        command = ["redis-server", "--port", "0", "--unixsocket", str(self._socket), "--dir", str(self._folder), "--save", ""]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s:
            with contextlib.suppress(RedisError):
                if self.client.ping():
                    return
            time.sleep(0.01)
        raise AssertionError("redis-server does not answer")

    def freeze(self) -> None:
        """Let it take connections and commands, and answer none."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it answer again, what it was asked meanwhile, too."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill it; what it held is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self.client.connection_pool.disconnect()


def own_redis() -> Iterator[RedisServer]:
    """A server of the caller's own; skips where there is no redis-server. To be made a fixture."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    with tempfile.TemporaryDirectory(prefix="k3gw-redis-") as folder:  # a socket's path must be short
        server = RedisServer(Path(folder))
        try:
            yield server
        finally:
            server.stop()
            server.client.close()
