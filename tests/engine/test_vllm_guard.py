from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from server.engine.vllm_guard import Guard

GATEWAY = """
import subprocess, sys
from server.engine.vllm_guard import Guard
engines = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
guard = Guard(engine.pid for engine in engines)
print(*(engine.pid for engine in engines), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def sleeper() -> Iterator[psutil.Process]:
    process = subprocess.Popen(["sleep", "600"])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def test_a_killed_gateway_takes_its_engines_along() -> None:
    with subprocess.Popen([sys.executable, "-c", GATEWAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None
        engines = [psutil.Process(int(pid)) for pid in gateway.stdout.readline().split()]
        assert [True, True] == [engine.is_running() for engine in engines]
        gateway.kill()
        _, alive = psutil.wait_procs(engines, timeout=10)
    assert [] == [engine for engine in alive if engine.status() != psutil.STATUS_ZOMBIE]


def test_released_processes_live_on(sleeper: psutil.Process) -> None:
    guard = Guard([sleeper.pid])
    guard.release()
    guard.release()
    assert 0 == guard._shell.returncode
    assert psutil.STATUS_ZOMBIE != sleeper.status()
