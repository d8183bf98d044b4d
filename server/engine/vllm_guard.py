"""Ends the engine's processes when the gateway is gone.

Role: vLLM's engine process does not notice that the one which started it is gone, and keeps its memory, or its GPUs, for good.
The end of a container or a service takes everything along; a `kill -9` in a terminal does not, nor does a kernel short of memory,
nor the end of a gateway whose engine is still starting. The plugin that vLLM loads into its processes brings this along.
What loads notices only once it has been told what to load; until then it can be ended from here.
Invariant: the kernel closes the pipe to the parent however that ends, so its end is noticed, even one before the watch began.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import psutil  # type: ignore[import-untyped]

_NAMES: Final = ("EngineCore", "VllmWorker")


def end_with_parent() -> None:
    """From now on this process ends when its parent does, if it is one of the engine's."""
    parent = multiprocessing.parent_process()
    if parent is None or not multiprocessing.current_process().name.startswith(_NAMES):
        return

    def wait() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="engine-guard", daemon=True).start()


def kill_families(pids: Iterable[int]) -> None:
    """Kill these processes and all below them, which a core that is killed alone leaves behind.

    Those that are gone, or that this one may not kill, do not keep it from the others.
    """
    for pid in pids:
        with suppress(psutil.Error):
            _kill_family(psutil.Process(pid))


def _kill_family(process: psutil.Process) -> None:
    process.suspend()  # it must start no more while we look
    try:
        for child in process.children():
            with suppress(psutil.Error):
                _kill_family(child)
    finally:
        process.kill()


def kill_children() -> None:
    """Kill all that this process has started, and is starting: a thread that starts an engine can't be told to stop.

    To be called last: what is killed has no time to clean up. Python's tracker does that for it, and is left to end by itself.
    """
    own, killed = psutil.Process(), set[int]()
    while found := [child for child in own.children() if child.pid not in killed and not _is_tracker(child)]:
        killed.update(child.pid for child in found)
        kill_families(child.pid for child in found)


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:  # it has ended
        return True
