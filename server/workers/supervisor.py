"""The process that a gateway with several workers is started as: it starts them and the engine, and stops all of them.

Role: in the place of `server.serving.run`. It serves nothing and asks the engine nothing. Invariant: all live or none: when the
engine or a worker ends unasked, the others end what they have with an error, within a second, and then the process ends with 1,
so that whoever started it starts it anew. vLLM lets no worker come back to an engine that runs.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvloop

from server import logs
from server.banner import say
from server.engine.profiles import ProfileError
from server.engines import engine_opener, vllm_model
from server.serving import exit_code
from server.settings import Settings
from server.store.database import Database
from server.store.errors import StoreError
from server.workers.board import NUM_NUMBERS
from server.workers.channel import Channel, Word, pair
from server.workers.listening import bind_all
from server.workers.worker import SIGNALS, Seat, main

if TYPE_CHECKING:
    from server.engine.vllm_core import SharedCore

PROGRESS_INTERVAL_S: Final = 2.0
LOST_S: Final = 4.0
"""Workers that were told that all is lost are killed after this."""

STOP_S: Final = 15.0
"""Those that were told to stop, after this."""

CORE_STOP_S: Final = 5.0
MAX_SOCKET_FOLDER_CHARS: Final = 70
"""A Unix socket's path has 104 bytes at most; its folder has a random name below this one."""

log = structlog.get_logger(__name__)


def run(settings: Settings, config: Path | None, flags: Mapping[str, Any]) -> int:
    """Serve until told to stop, as `server.serving.run`; returns the exit code."""
    logs.configure(settings.log)
    try:
        engine_opener(settings)
        Database(settings.storage.ledger_url)
        listeners = bind_all(settings.http.host, settings.http.port, settings.http.workers)
    except (OSError, ValueError, StoreError) as error:
        say(f"error: {error}")
        return 2
    folder = _socket_folder()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Supervisor(settings, config, flags, folder).run(listeners))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Worker:
    """A worker's process, as the supervisor sees it."""

    def __init__(self, index: int, process: BaseProcess, channel: Channel) -> None:
        self.index = index
        self.process = process
        self.channel = channel
        self.is_up = False
        self.is_drained = False
        self.has_ended = asyncio.Event()


class Supervisor:
    """Starts `settings.http.workers` workers, and ends with them."""

    def __init__(self, settings: Settings, config: Path | None, flags: Mapping[str, Any], folder: Path) -> None:
        self._settings = settings
        self._config = config
        self._flags = flags
        self._folder = folder
        self._started_s = time.monotonic()
        self._workers: list[_Worker] = []
        self._core: SharedCore | None = None
        self._first_key = ""
        self._code = 0
        self._num_signals = 0
        self._is_draining = False
        self._is_ending = False

    async def run(self, listeners: list[socket.socket]) -> int:
        """Until all workers have ended; returns the exit code."""
        loop = asyncio.get_running_loop()
        # First: a signal that waits while workers are started would end this process, and none of them cleanly.
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._tell_all("reload"))
        try:
            ends = self._start_workers(listeners)
        except OSError as error:
            say(f"error: can't start worker {len(self._workers)}: {error.strerror or error}")
            for worker in self._workers:
                worker.process.kill()
                worker.channel.close()
            return 1
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self._hear(worker)) for worker in self._workers]
            if ends:
                beside.append(tasks.create_task(self._run_core(ends)))
            await asyncio.gather(*(self._watch(worker) for worker in self._workers))
            for task in beside:
                task.cancel()
        if self._core is not None:
            await asyncio.to_thread(self._core.close, CORE_STOP_S)
        return self._code

    def _start_workers(self, listeners: list[socket.socket]) -> list[socket.socket]:
        """Returns the ends over which they learn of a shared engine core. Raises `OSError` where one can't be started."""
        context, settings = multiprocessing.get_context("spawn"), self._settings
        is_shared = settings.engine.kind == "vllm"
        count = len(listeners)
        numbers: Any = context.RawArray("d", count * NUM_NUMBERS) if is_shared else None
        host, port = listeners[0].getsockname()[:2]
        base_url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        started_unix_s = int(time.time())
        ends: list[socket.socket] = []
        with _signals_blocked(), ExitStack() as given:
            for listener in listeners:
                given.enter_context(listener)
            for index, listener in enumerate(listeners):
                own, theirs = pair()
                given.enter_context(theirs)
                core: socket.socket | None = None
                if is_shared:
                    end, core = pair()
                    ends.append(end)
                    given.enter_context(core)
                seat = Seat(
                    index, count, settings, dict(self._flags), self._config, base_url, listener, theirs, core, numbers,
                    self._folder, self._started_s, started_unix_s,
                )  # fmt: skip
                process = context.Process(target=main, args=(seat,), name=f"worker-{index}")
                try:
                    process.start()
                except OSError:
                    own.close()
                    raise
                self._workers.append(_Worker(index, process, Channel(own)))
        return ends

    async def _hear(self, worker: _Worker) -> None:
        """What a worker says. That it is gone is seen elsewhere."""
        await worker.channel.open()
        async for word, text in worker.channel.heard():
            if word == "first_key":
                self._first_key = text
                say(f"the store was empty: tenant `default` has the API key {text}\n(shown this once; only its SHA-256 is kept)")
            elif word == "up":
                worker.is_up = True
                if all(worker.is_up for worker in self._workers):
                    self._tell_all("ready", self._first_key)
            elif word == "drain":
                self._drain()
            elif word == "drained":
                worker.is_drained = True
                if all(worker.is_drained for worker in self._workers):
                    say("stopping the engine")
                    self._end()
            elif word == "failed":
                self._lose(f"worker {worker.index} has failed: {text}")

    async def _watch(self, worker: _Worker) -> None:
        """Until the worker has ended."""
        loop, sentinel = asyncio.get_running_loop(), worker.process.sentinel
        loop.add_reader(sentinel, worker.has_ended.set)
        await worker.has_ended.wait()
        loop.remove_reader(sentinel)
        worker.process.join()
        worker.channel.close()
        code = worker.process.exitcode
        told = 2 if code == 2 else 1
        if not self._is_ending:
            self._lose(f"worker {worker.index} has ended with exit code {code}", code=told)
        elif code:
            self._code = max(self._code, told)

    async def _run_core(self, ends: list[socket.socket]) -> None:
        """The engine core, until it ends."""
        from server.engine.vllm_core import SharedCore

        profile, model_path = vllm_model(self._settings)
        self._core = core = SharedCore(profile, model_path, model_path.name, ends)
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(self._tell_progress(profile.name))
            try:
                await core.start()
            except Exception as error:
                if not self._is_ending:
                    log.error("engine_failed", error=str(error), exc_info=not isinstance(error, ProfileError))
                    self._lose("the engine could not be started", code=exit_code(error))
                return
            finally:
                telling.cancel()
        say(f"the engine is up after {time.monotonic() - self._started_s:.0f} s")
        await core.wait_dead()
        self._lose("the engine has died")

    async def _tell_progress(self, profile: str) -> None:
        while True:
            say(f"starting the engine ({profile}): {time.monotonic() - self._started_s:.0f} s")
            await asyncio.sleep(PROGRESS_INTERVAL_S)

    def _stop(self) -> None:
        """A signal: drain. Another: end at once."""
        self._num_signals += 1
        if self._num_signals == 1:
            self._drain()
        else:
            self._tell_all("hurry")
            self._end()

    def _drain(self) -> None:
        """Let all take no more requests, and end what they have. It comes to `_end`."""
        if self._is_draining or self._is_ending:
            return
        self._is_draining = True
        drain_timeout_s = self._settings.http.drain_timeout_s
        say(f"stopping: answers under way have {drain_timeout_s} s to end; ask again to end them at once")
        self._tell_all("drain")

    def _end(self) -> None:
        """Let all stop."""
        self._is_ending = True
        self._tell_all("end")
        asyncio.get_running_loop().call_later(STOP_S, self._kill)

    def _lose(self, what: str, *, code: int = 1) -> None:
        """All is lost: let all end with an error."""
        if self._is_ending:
            return
        log.error("replica_lost", reason=what)
        self._is_ending, self._code = True, code
        self._tell_all("lost", what)
        asyncio.get_running_loop().call_later(LOST_S, self._kill)

    def _tell_all(self, word: Word, text: str = "") -> None:
        for worker in self._workers:
            worker.channel.say(word, text)

    def _kill(self) -> None:
        for worker in self._workers:
            if not worker.has_ended.is_set():
                worker.process.kill()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """What is started within comes up with these signals blocked; this process gets them afterwards."""
    resource_tracker.ensure_running()  # its start lifts the mask
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _socket_folder() -> Path:
    """For this user alone."""
    usual = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="k3gw-", dir=usual if len(usual) <= MAX_SOCKET_FOLDER_CHARS else "/tmp"))
