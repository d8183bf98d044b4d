"""What installs the gateway in the images, run here: from a source that can't be written to, into an empty place; and what it makes, run
as an image runs it: by a user of no rights, with a root file system that is read-only, where that can be had.
"""

from __future__ import annotations

import base64
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path

import httpx
import pytest
from PIL import Image

from server.engine.profiles import profile_names
from tests.conftest import KEY
from tests.deploy.expressions import ROOT

SCRIPT = ROOT / "deploy" / "container" / "install.sh"
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}  # all that is needed is there; `0` is pip's way to say it
START_S = 60.0
UNPRIVILEGED = (
    "setpriv --reuid 10001 --regid 0 --clear-groups --no-new-privs "
    "--inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search --bounding-set=-all,+dac_read_search"
)
"""The image's user; it may read what this machine hides, as Python may lie in root's home."""

READ_ONLY = f"""
mount -t tmpfs -o mode=0755 none /var/lib
mount -t tmpfs -o mode=0755 none /var/cache
install -d -o 10001 -g 0 -m 0770 /var/lib/k3-gateway /var/cache/k3-gateway
mount -t tmpfs -o mode=1777 none "$TMPDIR"
mount -o remount,bind,ro /
cd /var/lib/k3-gateway
exec {UNPRIVILEGED} "$@"
"""
"""The image's file system: two volumes and /tmp, and nothing else that can be written to."""


@functools.cache
def has_namespaces() -> bool:
    """Whether file systems can be mounted here without anybody else seeing it."""
    if sys.platform != "linux" or os.getuid() != 0 or not shutil.which("setpriv"):
        return False
    done = subprocess.run(["unshare", "--mount", "mount", "-o", "remount,bind,ro", "/"], capture_output=True)
    return done.returncode == 0


def privately(script: str, *command: str) -> list[str]:
    """`command` after `script`, in file systems of its own."""
    return ["unshare", "--mount", "--kill-child", "sh", "-euc", script, "sh", *command]


@pytest.fixture(scope="module")
def prefix() -> Iterator[Path]:
    """The gateway, installed by the script, in a folder that every user can look into."""
    with tempfile.TemporaryDirectory(prefix="k3gw-installed-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "home").mkdir()
        command = [str(SCRIPT), str(ROOT), str(folder / "prefix"), "tracing"]
        if has_namespaces():
            command = privately(f'mount --bind "{ROOT}" "{ROOT}"; mount -o remount,bind,ro "{ROOT}"; exec "$@"', *command)
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder / "home"), "PYTHON": sys.executable, **OFFLINE}
        done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=300)
        assert 0 == done.returncode, done.stdout + done.stderr
        assert [] == list((folder / "home").iterdir()), "nothing is left beside"
        yield folder / "prefix"


@contextmanager
def running(prefix: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """`serve` of the installed gateway as the image with the scripted engine starts it, on a free port; and a client of it."""
    (folder / "tmp").mkdir()
    config = ROOT / "deploy" / "container" / "scripted.yaml"
    command = [str(prefix / "bin" / "k3-gateway"), "serve", "--config", str(config), "--host", "127.0.0.1", "--port", "0"]
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/var/cache/k3-gateway",
        "TMPDIR": str(folder / "tmp"),
        "K3GW_TENANCY__KEY": KEY,
    }
    if has_namespaces():
        command = privately(READ_ONLY, *command)
    else:
        storage = {"LEDGER_URL": f"sqlite:///{folder}/gateway.db", "SPOOL_PATH": f"{folder}/spool"}
        environment |= {"HOME": str(folder), **{f"K3GW_STORAGE__{name}": value for name, value in storage.items()}}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd="/", env=environment, stderr=log, text=True)
    try:
        with httpx.Client(base_url=url_of(folder / "log", process), headers={"authorization": f"Bearer {KEY}"}) as client:
            yield process, client
    finally:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0)
        if process.returncode is None:
            process.kill()
            process.wait(10)


def url_of(log: Path, process: subprocess.Popen[str]) -> str:
    """Where it listens, once it says that it is ready."""
    deadline_s = time.monotonic() + START_S
    while "base URL" not in (text := log.read_text(encoding="utf-8")):
        assert process.poll() is None, text
        assert time.monotonic() < deadline_s, text
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    return text.partition("base URL")[2].split()[0].removesuffix("/v1")


def child_of(process: subprocess.Popen[str]) -> int:
    """The gateway's process, which `unshare` has started and waits for."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()[0])


def seen_by(pid: int) -> tuple[str, str, str]:
    """Its user, its group, and how it sees the root file system."""
    status, mounts = (Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8") for name in ("status", "mounts"))
    (user,), (group,) = (set(re.findall(rf"^{name}:(?:\t(\d+))", status, re.MULTILINE)) for name in ("Uid", "Gid"))
    root = [line.split()[3].split(",") for line in mounts.splitlines() if line.split()[1] == "/"][-1]
    return user, group, "ro" if "ro" in root else "rw"


def run(prefix: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(prefix / "bin" / "k3-gateway"), *arguments]
    return subprocess.run(
        command, cwd="/", env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True, timeout=60
    )


def test_only_the_gateway_is_new(prefix: Path) -> None:
    """What the Python that ran the script has is used where it is: an image's own vLLM and torch are not installed again."""
    (packages,) = prefix.glob("lib/python*/site-packages")
    new = {path.name.partition("-")[0] for path in packages.glob("*.dist-info")}
    assert {"k3_gateway", "pip"} == new
    where = "import server, httpx; print(server.__file__); print(httpx.__file__)"
    done = subprocess.run([str(prefix / "bin" / "python"), "-c", where], cwd="/", capture_output=True, text=True, timeout=60)
    ours, theirs = done.stdout.split()
    assert Path(ours).is_relative_to(packages)
    assert Path(theirs) == Path(httpx.__file__)


def test_all_that_the_gateway_reads_came_along(prefix: Path) -> None:
    """Every file of the package that is no Python: profiles, scripts for Redis, pages, weights."""
    (installed,) = prefix.glob("lib/python*/site-packages/server")
    kinds = {".yaml", ".lua", ".safetensors", ".js", ".css", ".html", ".svg"}
    source = {path.relative_to(ROOT / "server") for path in (ROOT / "server").rglob("*") if path.suffix in kinds}
    assert len(source) > len(profile_names())
    assert source == {path.relative_to(installed) for path in installed.rglob("*") if path.suffix in kinds}


def test_settings_and_profiles_are_read_from_anywhere(prefix: Path) -> None:
    done = run(prefix, "check-config", "--config", str(ROOT / "deploy" / "container" / "vllm.yaml"))
    assert 0 == done.returncode, done.stderr
    assert "engine.profile = 'kimi-k3-b300'" in done.stdout
    mistaken = run(prefix, "check-config", K3GW_ENGINE__PROFILE="kimi-k4")
    assert 2 == mistaken.returncode
    assert "kimi-k4" in mistaken.stderr


def test_vllm_finds_the_gateway_s_plugin(prefix: Path) -> None:
    """By the package's entry points, which a copy of the source would not have."""
    code = "from server.engine import vllm_plugin; print(vllm_plugin.is_installed())"
    done = subprocess.run([str(prefix / "bin" / "python"), "-c", code], cwd="/", capture_output=True, text=True, timeout=60)
    assert "True\n" == done.stdout


def test_it_answers_as_a_user_of_no_rights_on_a_read_only_file_system(prefix: Path, tmp_path: Path) -> None:
    picture = BytesIO()
    Image.new("RGB", (8, 8), "red").save(picture, "PNG")  # decoded in processes of their own, by way of files
    url = f"data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}"
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    with running(prefix, tmp_path) as (process, client):
        assert [200, 200] == [client.get(path).status_code for path in ("/health", "/ready")]
        answer = client.post(
            "/v1/chat/completions", json={"model": "kimi-k3", "messages": [{"role": "user", "content": content}]}, timeout=30
        )
        assert (200, "stop") == (answer.status_code, answer.json()["choices"][0]["finish_reason"])
        if has_namespaces():
            gateway = child_of(process)
            assert ("10001", "0", "ro") == seen_by(gateway)
            os.kill(gateway, signal.SIGTERM)
        else:
            process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(30), (tmp_path / "log").read_text(encoding="utf-8")
    assert "Read-only" not in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_python_that_is_too_old_or_new_is_refused(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    done = subprocess.run(
        [str(SCRIPT), str(ROOT), str(tmp_path / "prefix")],
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
    )
    assert 1 == done.returncode
    assert f"{python} is no Python 3.11, 3.12 or 3.13" in done.stderr
    assert not (tmp_path / "prefix").exists()
