"""An engine core that several processes use: started here, by a process that asks it nothing, and attached to by the others.

Role: for a gateway with several workers. vLLM binds a pair of sockets for each of them before the core starts; each is handed its
pair, with which it makes the client that `vllm_start` builds otherwise.
Invariant: how many will attach is fixed when the core starts, and nobody can attach again: the core greets each once.
Must not: import vllm before the environment of the profile is set.
Source: vllm/entrypoints/cli/serve.py `run_multi_api_server`, vllm/v1/engine/utils.py (0.32 and 0.33).
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final

from server import environment
from server.engine.profiles import Profile, ProfileError
from server.engine.vllm_guard import kill_families
from server.errors import EngineDeadError

MAX_ADDRESSES_BYTES: Final = 16 * 1024
_NUM_LISTENERS: Final = 2


class SharedCore:
    """The processes of one engine. `ends`: of the pairs of sockets over which those that attach are handed theirs."""

    def __init__(self, profile: Profile, model_path: Path, model_name: str, ends: Sequence[socket.socket]) -> None:
        self._profile = profile
        self._model = model_path, model_name
        self._ends = ends
        self._launch: Any = None
        self._is_up = False

    async def start(self) -> None:
        """Return when the core is up. Raises `ProfileError`, and whatever vLLM raises."""
        environment.apply(self._profile.environment)
        loop = asyncio.get_running_loop()
        up: asyncio.Future[None] = loop.create_future()
        # A thread that does not hold up the end of the process: what it waits for may take an hour.
        threading.Thread(target=self._start_for, args=(loop, up), name="engine-start", daemon=True).start()
        await up
        self._is_up = True

    async def wait_dead(self) -> None:
        """Return when one of the core's processes has ended; to be called once it is up."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        sentinels = [process.sentinel for process in self._processes()]
        for sentinel in sentinels:
            loop.add_reader(sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            for sentinel in sentinels:
                loop.remove_reader(sentinel)

    def close(self, timeout_s: float) -> None:
        """End the core's processes, however far they are; those that take longer are killed. Blocks."""
        if self._launch is None:
            return
        if not self._is_up:
            # What loads has children that do not notice yet that they are alone.
            kill_families(process.pid for process in self._processes() if process.pid is not None)
        for part in (self._launch.engine_manager, self._launch.coordinator):
            if part is not None:
                part.shutdown(timeout=timeout_s)

    def _processes(self) -> list[Any]:
        manager, coordinator = self._launch.engine_manager, self._launch.coordinator
        of_ray = manager is None or not hasattr(manager, "processes")  # actors on other machines: vLLM tells the workers
        return [*([] if of_ray else manager.processes), *([] if coordinator is None else [coordinator.proc])]

    def _start_for(self, loop: asyncio.AbstractEventLoop, up: asyncio.Future[None]) -> None:
        """The thread's body."""
        # As in `vllm_start`: Ctrl-C in a terminal must not reach the engine's processes.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._start()
        except Exception as error:  # noqa: BLE001 - raised again where the start is awaited
            outcome: Exception | None = error
        else:
            outcome = None
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_settle, up, outcome)

    def _start(self) -> None:
        from vllm.v1.engine.utils import bind_engine_zmq_listeners, launch_core_engines
        from vllm.v1.executor import Executor

        from server.engine.vllm_start import configured

        arguments, config = configured(self._profile, *self._model, num_processes=len(self._ends), process=-1)
        media = config.model_config.multimodal_config
        if media is not None and media.mm_tensor_ipc == "torch_shm":
            raise ProfileError(
                f"the engine profile `{self._profile.name}` has `mm_tensor_ipc: torch_shm`, which several workers can't "
                "use; drop it, or set `http.workers: 1`"
            )
        listeners = bind_engine_zmq_listeners(config, len(self._ends))
        executor = Executor.get_class(config)
        with launch_core_engines(config, executor, not arguments.disable_log_stats, listeners.addresses) as launch:
            self._launch = launch
            coordinator = launch.coordinator
            stats_address = coordinator.get_stats_publish_address() if coordinator else None
            for end, request, answer in zip(self._ends, listeners.inputs, listeners.outputs, strict=True):
                addresses = {"input_address": request.address, "output_address": answer.address}
                if stats_address is not None:
                    addresses["stats_update_address"] = stats_address
                with end:
                    socket.send_fds(end, [json.dumps(addresses).encode()], [request.socket.fileno(), answer.socket.fileno()])
                request.close()
                answer.close()


def attachment(end: socket.socket) -> dict[str, Any]:
    """vLLM's `client_addresses`, as they come over this end. Blocks until then; raises `EngineDeadError` where they never do."""
    with end:
        words, descriptors, _, _ = socket.recv_fds(end, MAX_ADDRESSES_BYTES, _NUM_LISTENERS)
    if not words:
        raise EngineDeadError("the engine could not be started")
    listeners = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    return {**json.loads(words), "input_listener": listeners[0], "output_listener": listeners[1]}


def _settle(up: asyncio.Future[None], error: Exception | None) -> None:
    if up.done():
        return
    if error is None:
        up.set_result(None)
    else:
        up.set_exception(error)
