from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from server.engine.vllm_guard import kill_families

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


FAMILY = """
import subprocess, sys
depth = int(sys.argv[1])
children = [subprocess.Popen([sys.executable, __file__, str(depth - 1)]) for _ in range(2)] if depth else []
sys.stdout.write("up\\n")  # in one piece, also where Python does not buffer
sys.stdout.flush()
sys.stdin.read()
"""
"""Each has two below it, as deep as its argument; all hold what the first one writes to."""


def test_a_killed_engine_takes_all_that_it_has_started_along(tmp_path: Path) -> None:
    file = tmp_path / "family.py"
    file.write_text(FAMILY, encoding="utf-8")
    with subprocess.Popen([sys.executable, str(file), "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        assert [b"up\n"] * 7 == [engine.stdout.readline() for _ in range(7)]
        below = psutil.Process(engine.pid).children(recursive=True)
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        kill_families([gone.pid, engine.pid])
        assert b"" == engine.stdout.read(), "ends with the last that could write"
        _, left = psutil.wait_procs(below, timeout=10)  # it has closed its files a moment before it is gone
    assert 6 == len(below)
    assert [] == [process for process in left if is_alive(process)]


def test_what_may_not_be_killed_is_left_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "family.py"
    file.write_text(FAMILY, encoding="utf-8")
    with subprocess.Popen([sys.executable, str(file), "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        assert [b"up\n"] * 3 == [engine.stdout.readline() for _ in range(3)]
        barred, other = psutil.Process(engine.pid).children()
        suspend = psutil.Process.suspend

        def suspend_some(process: psutil.Process) -> None:
            if process == barred:
                raise psutil.AccessDenied(process.pid)
            suspend(process)

        monkeypatch.setattr(psutil.Process, "suspend", suspend_some)
        kill_families([barred.pid, engine.pid])
        engine.wait(60)
        psutil.wait_procs([other], timeout=10)
        alive = [is_alive(process) for process in (barred, other)]
        barred.kill()
    assert [True, False] == alive


STARTING = """
import multiprocessing, os, sys, threading, time
from multiprocessing import resource_tracker
import psutil
from server.engine.vllm_guard import kill_children

if __name__ == "__main__":
    resource_tracker.ensure_running()
    multiprocessing.set_executable(sys.argv[1])
    engine = multiprocessing.get_context("spawn").Process(target=print, args=(b"x" * 1_000_000,))
    threading.Thread(target=engine.start, daemon=True).start()
    while len(psutil.Process().children()) < 2:
        time.sleep(0.01)
    print(len(multiprocessing.active_children()), flush=True)
    kill_children()
    print(sum(child.status() != "zombie" for child in psutil.Process().children()), flush=True)
    os._exit(0)
"""
"""Its engine, the program it is given, does not read what it is to do, so that its start goes on; it holds what is printed to."""


def test_an_engine_that_is_being_started_is_killed_and_the_tracker_is_not(tmp_path: Path) -> None:
    file, engine = tmp_path / "gateway.py", tmp_path / "engine"
    file.write_text(STARTING, encoding="utf-8")
    engine.write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    engine.chmod(0o700)
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, str(file), str(engine)], env={"PYTHONPATH": root}, stdout=subprocess.PIPE, timeout=60, check=True
    )
    assert [b"0", b"1"] == done.stdout.split(), "none is known yet; the tracker stays"


ENDING = """
import subprocess
from server import cli, serving

def run(*arguments):
    subprocess.Popen(["sleep", "600"])
    return 3

serving.run = run
cli.main()
"""


def test_what_a_gateway_has_started_ends_with_it() -> None:
    """The output ends with the last that could write to it."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", ENDING, "serve", "--engine", "scripted"]
    assert 3 == subprocess.run(command, cwd=root, stdout=subprocess.PIPE, timeout=60, check=False).returncode
