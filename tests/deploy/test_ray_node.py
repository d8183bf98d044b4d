"""What starts the nodes of an engine that spans several, with something else in the place of Ray and of the gateway."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.expressions import ROOT

PYTHON = f"""#!/bin/sh
case "$*" in
    "-m ray.scripts.scripts"*) shift 2; echo "ray $*" >> "$SAID" ;;
    *) exec {sys.executable} "$@" ;;
esac
"""
GATEWAY = '#!/bin/sh\necho "k3-gateway $* (RAY_ADDRESS=$RAY_ADDRESS)" >> "$SAID"\n'
RAY = """
import os, pathlib

def init(address, log_to_driver):
    assert "auto" == address

def nodes():
    path = pathlib.Path(os.environ["SAID"] + ".asked")
    asked = path.stat().st_size if path.exists() else 0
    path.write_text("." * (asked + 1))
    return [{"Alive": True}, {"Alive": asked >= int(os.environ["ASKED_BEFORE"])}, {"Alive": False}]
"""
"""Three nodes: the leader, one that comes when it has been asked for often enough, one that was lost."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The `bin` of an image: the script, and what stands in for the rest."""
    programs = {"python": PYTHON, "k3-gateway": GATEWAY, "sleep": "#!/bin/sh\nexec /bin/sleep 0.02\n"}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    shutil.copy(ROOT / "deploy" / "container" / "ray-node.sh", tmp_path / "ray-node")
    (tmp_path / "ray.py").write_text(RAY)
    return tmp_path


def start(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    inherited = {"PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": str(folder), "SAID": str(folder / "said"), "ASKED_BEFORE": "0"}
    command = [str(folder / "ray-node"), *words]
    return subprocess.Popen(command, env={**inherited, **environment}, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code, and what it said."""
    _, said = process.communicate(timeout=30)
    return process.returncode, said


def said(folder: Path) -> list[str]:
    path = folder / "said"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@pytest.fixture
def head() -> Iterator[socket.socket]:
    """Where a leader's Ray answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def port_of(listener: socket.socket) -> str:
    return str(listener.getsockname()[1])


def test_a_leader_waits_for_all_nodes_and_becomes_the_gateway(folder: Path) -> None:
    code, log = ended(start(folder, "leader", "2", "--config", "x.yaml", "--port", "1", ASKED_BEFORE="2"))
    assert 0 == code, log
    head, gateway = said(folder)
    assert head.startswith("ray start --head --port=6379 ")
    assert "k3-gateway serve --config x.yaml --port 1 (RAY_ADDRESS=auto)" == gateway
    assert 3 <= len((folder / "said.asked").read_text())


def test_a_leader_whose_nodes_do_not_come_says_so_and_starts_nothing(folder: Path) -> None:
    code, log = ended(start(folder, "leader", "3", NODES_WAIT_S="0.1"))
    assert code != 0
    assert "2 of 3 nodes came" in log
    assert 1 == len(said(folder))


def test_a_worker_joins_a_leader_that_is_there(folder: Path, head: socket.socket) -> None:
    code, log = ended(start(folder, "worker", "127.0.0.1", RAY_PORT=port_of(head)))
    assert 0 == code, log
    assert [f"ray start --address=127.0.0.1:{port_of(head)} --disable-usage-stats --block"] == said(folder)


def test_a_worker_without_a_leader_gives_up(folder: Path, head: socket.socket) -> None:
    head.close()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = port_of(closed)
    code, log = ended(start(folder, "worker", "127.0.0.1", RAY_PORT=port, NODES_WAIT_S="0"))
    assert (1, True) == (code, f"no Ray at 127.0.0.1:{port}" in log)
    assert [] == said(folder)


def test_a_worker_outlasts_its_leader_and_no_longer(folder: Path, head: socket.socket) -> None:
    process = start(folder, "outlast", "127.0.0.1", RAY_PORT=port_of(head))
    head.settimeout(30)
    for _ in range(3):
        connection, _ = head.accept()  # it asks again and again
        connection.close()
    assert process.poll() is None
    head.close()
    assert 0 == ended(process)[0]


@pytest.mark.parametrize("words", [(), ("join",), ("worker",), ("leader",), ("outlast",)])
def test_what_it_is_not_told_is_asked_for(folder: Path, words: tuple[str, ...]) -> None:
    code, log = ended(start(folder, *words))
    assert code != 0
    assert "leader" in log or "how many nodes" in log
    assert [] == said(folder)
