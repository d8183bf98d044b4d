from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

GATEWAY = """
import multiprocessing, sys, time
from server.engine.vllm_guard import end_with_parent

def live(pids):
    end_with_parent()
    pids.put(multiprocessing.current_process().pid)
    time.sleep(600)

if __name__ == "__main__":
    end_with_parent()
    spawn = multiprocessing.get_context("spawn")
    pids = spawn.Queue()
    for name in ("EngineCore", "EngineCore_DP1", "VllmWorker-0", "bystander"):
        spawn.Process(target=live, name=name, args=(pids,)).start()
        print(pids.get(), flush=True)
    sys.stdin.read()
"""


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_killed_gateway_takes_its_engines_along_and_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "gateway.py"
    file.write_text(GATEWAY, encoding="utf-8")
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, str(file)]
    with subprocess.Popen(command, env={"PYTHONPATH": root}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None
        *engines, bystander = [psutil.Process(int(gateway.stdout.readline())) for _ in range(4)]
        assert [True] * 4 == [is_alive(process) for process in (*engines, bystander)]
        gateway.kill()
        _, left = psutil.wait_procs(engines, timeout=10)
    assert [] == [process for process in left if is_alive(process)]
    assert is_alive(bystander)
    bystander.kill()
