from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from server.engine import vllm_core
from server.engine.vllm_core import SharedCore

PID = 7


@pytest.mark.parametrize(("end", "killed"), [("stopped", [PID]), ("failed", [PID]), ("up", [])])
async def test_what_a_core_has_started_is_killed_unless_it_is_up(
    end: str, killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    manager = SimpleNamespace(processes=[SimpleNamespace(pid=PID)], shutdown=lambda timeout: told.append(timeout))
    launched, released = threading.Event(), threading.Event()

    def start(core: SharedCore) -> None:
        core._launch = SimpleNamespace(engine_manager=manager, coordinator=None)
        launched.set()
        if end == "stopped":
            released.wait(60)
        elif end == "failed":
            raise ValueError("no such model")

    monkeypatch.setattr(SharedCore, "_start", start)
    monkeypatch.setattr(vllm_core, "kill_families", told.extend)
    profile: Any = SimpleNamespace(environment={})
    core = SharedCore(profile, Path("model"), "model", ())
    starting = asyncio.ensure_future(core.start())
    await asyncio.to_thread(launched.wait, 60)
    if end == "stopped":
        starting.cancel()
    await asyncio.wait([starting], timeout=60)
    core.close(1.5)
    released.set()
    assert [*killed, 1.5] == told
    assert (end == "stopped", end == "up") == (starting.cancelled(), not starting.cancelled() and starting.exception() is None)
