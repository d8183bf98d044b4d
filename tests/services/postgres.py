"""A PostgreSQL server of the tests' own: on a free port, in a temporary folder, gone with the run.

`postgres_server` is one server for the whole run, in whichever folder it is asked for first; `postgres_url` is an empty database on it. A
test that stops a server starts one for itself: `Postgres(folder)`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

PASSWORD = "the-password-of-tests"
SERVER = pytest.StashKey["Postgres | None"]()
START_S = 30.0


def binaries() -> Path | None:
    """The folder of PostgreSQL's programs, or None."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in found if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


class Postgres:
    """One server, which can be stopped, started again, and killed."""

    def __init__(self, folder: Path) -> None:
        bin_folder = binaries()
        assert bin_folder is not None
        self._bin = bin_folder
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:  # which PostgreSQL refuses to run as
            names = {user.pw_name for user in pwd.getpwall()}
            user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(folder, user.pw_uid, user.pw_gid)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run(
            "initdb",
            "-D",
            str(folder / "data"),
            "-U",
            "gateway",
            "-A",
            "scram-sha-256",
            "--pwfile",
            str(secret),
            "-N",
            "-E",
            "UTF8",
        )
        self.start()

    def _run(self, program: str, *arguments: str) -> None:
        environment = {**os.environ, "PGPASSWORD": PASSWORD, "LC_ALL": "C"}
        command = [str(self._bin / program), *arguments]
        done = subprocess.run(command, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=60, **self._as)
        assert 0 == done.returncode, done.stderr + done.stdout

    def start(self) -> None:
        """Start, or start again, at the same port; returns when it takes connections."""
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self._folder),
            "fsync": "off",
            "shared_buffers": "16MB",
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._bin / "postgres"), "-D", str(self._folder / "data"), "-p", str(self.port), *settings]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log, **self._as)
        deadline_s = time.monotonic() + START_S
        while (
            subprocess.run([str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False).returncode
            != 0
        ):
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline_s, "PostgreSQL did not start"
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop at once: connections are cut, what was committed is kept."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(START_S)
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server's first process, such as SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(number)

    def signal_sessions(self, number: signal.Signals) -> int:
        """Send a signal to the processes that serve connections, too; their number."""
        assert self._process is not None
        num_sent = 0
        for child in psutil.Process(self._process.pid).children():
            with suppress(psutil.NoSuchProcess):  # a session may end at any moment
                child.send_signal(number)
                num_sent += 1
        return num_sent

    def url(self, database: str = "postgres", password: str = PASSWORD) -> str:
        """Where `database` is."""
        return f"postgresql://gateway:{password}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"test_{uuid.uuid4().hex}"
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "gateway", "-T", "template0", name)
        return self.url(name)


def start(config: pytest.Config) -> Postgres:
    """The run's one server. Skips where PostgreSQL is not installed."""
    if SERVER not in config.stash:
        config.stash[SERVER] = None
        if binaries() is not None:
            folder = Path(tempfile.mkdtemp(prefix="k3gw-postgres-"))
            config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
            server = config.stash[SERVER] = Postgres(folder)
            config.add_cleanup(server.stop)
    server = config.stash[SERVER]
    if server is None:
        pytest.skip("PostgreSQL is not installed (no initdb on the PATH nor under /usr/lib/postgresql)")
    return server


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Postgres:
    """A running server that nobody stops."""
    return start(request.config)


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> str:
    """An empty database."""
    return postgres_server.new_database()
