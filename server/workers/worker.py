"""One of the processes that serve: the gateway of a single process, on its own listening socket, told by the supervisor.

Role: what `server.serving.run` is where there is one process. Invariant: it stops no signal's way: the supervisor says when, and
whoever has lost it stops, too. Where the engine or another worker has died, everything under way ends with an error at once.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop
from fastapi import FastAPI

from server import logs, whole
from server import settings as settings_module
from server.app import create_app
from server.banner import banner, key_hint, key_shown, say
from server.dashboard import parts
from server.engines import engine_opener
from server.errors import EngineDeadError
from server.gateway import Gateway
from server.reload import Reloader
from server.serving import Server, exit_code, reloadable, server_config
from server.settings import Settings
from server.store.errors import StoreError
from server.workers.board import Board
from server.workers.channel import Channel
from server.workers.peers import Answer, Peers

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What the supervisor answers to, and no worker."""

LAST_WORDS_S: Final = 2.0


@dataclass(slots=True, frozen=True)
class Seat:
    """What a worker is given at its start. `listener`: takes its share of the connections. `channel`: to the supervisor.

    `core`: where it is told how to reach the engine core, and `numbers` those of the board; None where it has an engine of its
    own. `folder`: where workers find each other. `flags`, `config`: what the settings are read from again. `started_s`,
    `started_unix_s`: when the gateway was.
    """

    index: int
    count: int
    settings: Settings
    flags: Mapping[str, Any]
    config: Path | None
    base_url: str
    listener: socket.socket
    channel: socket.socket
    core: socket.socket | None
    numbers: MutableSequence[float] | None
    folder: Path
    started_s: float
    started_unix_s: int


def main(seat: Seat) -> None:
    """The process's body. Signals come to it blocked, so that none ends it before they are ignored."""
    for number in SIGNALS:
        signal.signal(number, _ignore)  # and not SIG_IGN, which what it starts would inherit
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os._exit(_run(seat))  # as the command line does


def _ignore(number: int, frame: Any) -> None:
    """Somebody has told all processes of the terminal or the service; this one is told by the supervisor."""


def _run(seat: Seat) -> int:
    logs.configure(seat.settings.log)
    try:
        app = create_app(seat.settings, engine_opener(seat.settings, _attachment(seat)))
    except (OSError, ValueError, StoreError) as error:
        say(f"error: {error}")
        return 2
    worker = Worker(seat, app)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(worker.serve())
    return exit_code(worker.gateway.failure)


def _attachment(seat: Seat) -> Any:
    if seat.core is None:
        return None
    from server.engine.vllm_start import Attachment

    return Attachment(seat.core, seat.index, seat.count)


class _Server(Server):
    """uvicorn's server, deaf to signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Worker:
    """One worker, whose application is `app`."""

    def __init__(self, seat: Seat, app: FastAPI) -> None:
        self._seat = seat
        self._channel = Channel(seat.channel)
        self._server = _Server(server_config(app))
        self.gateway: Gateway = app.state.gateway
        gateway, settings = self.gateway, seat.settings
        load = lambda: settings_module.load(seat.config, seat.flags)  # noqa: E731
        self._reloader = Reloader(settings, load, reloadable(gateway), path=seat.config)
        peers = Peers(seat.folder, seat.index, seat.count, _answers(app))
        gateway.others, gateway.awaits_others = peers, True
        gateway.created_s = seat.started_unix_s  # clients are told, and must be told the same by all
        gateway.storage.on_first_key = lambda secret: self._channel.say("first_key", secret)
        gateway.on_ready = lambda: self._channel.say("up")
        gateway.on_failure = self._failed
        gateway.on_drained = self._drained
        gateway.background += [
            self._listen,
            peers.run,
            self._reloader.run,
            self._pass_drain_on,
            lambda: self._server.turn_away_once(gateway.drain_wanted),
        ]
        if seat.numbers is not None:
            board = gateway.seats_elsewhere = Board(seat.numbers, seat.index, gateway.clock)
            gateway.background.append(lambda: _tell_of_engine(gateway, board))

    async def serve(self) -> None:
        """Until told to stop."""
        await self._server.serve(sockets=[self._seat.listener])

    async def _listen(self) -> None:
        """Do as the supervisor says. Where it is gone, its engine is as well."""
        await self._channel.open()
        acts: dict[str, Callable[[str], None]] = {
            "ready": self._ready,
            "drain": lambda _: self.gateway.drain(),
            "hurry": lambda _: self.gateway.end_answers(),
            "end": lambda _: self._server.end(),
            "lost": self._lost,
            "reload": lambda _: self._reloader.ask(),
        }
        async for word, text in self._channel.heard():
            acts[word](text)
        self._lost("the process that started this one is gone")
        shutil.rmtree(self._seat.folder, ignore_errors=True)  # which it would have done

    def _ready(self, first_key: str) -> None:
        gateway, seat = self.gateway, self._seat
        gateway.awaits_others = False
        if seat.index == 0:
            key = key_shown(seat.settings, [first_key] if first_key else [])
            hint = key_hint(key, gateway.storage.keys, seat.config)
            seconds = gateway.clock.monotonic_s() - seat.started_s
            say(banner(seat.base_url, gateway.models.models[0].name, key, hint, seconds))

    async def _pass_drain_on(self) -> None:
        """An operator may have asked this worker, and means all."""
        await self.gateway.drain_wanted.wait()
        self._channel.say("drain")

    def _drained(self) -> None:
        if self.gateway.failure is None:
            self._channel.say("drained")
        else:
            self._server.end()

    def _failed(self) -> None:
        """This worker can't go on, so none can."""
        self._channel.say("failed", str(self.gateway.failure))
        self._lost(str(self.gateway.failure))

    def _lost(self, why: str) -> None:
        """End what is under way with an error, and then this process."""
        gateway = self.gateway
        if gateway.failure is None:
            gateway.failure = EngineDeadError(why)
        gateway.answers.end_all(lambda: EngineDeadError("the engine has died; this replica will restart", retry_after_s=30))
        gateway.drain()
        asyncio.get_running_loop().call_later(LAST_WORDS_S, self._server.end)


async def _tell_of_engine(gateway: Gateway, board: Board) -> None:
    await gateway.opened.wait()
    assert gateway.engine is not None
    await board.run(gateway.engine.stats)


def _answers(app: FastAPI) -> dict[str, Answer]:
    """What this worker answers the others."""
    gateway: Gateway = app.state.gateway
    return {whole.METRICS: lambda _: whole.metrics_part(gateway), **parts.answers(gateway, app.state.dashboard)}
