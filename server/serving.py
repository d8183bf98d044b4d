"""Running one gateway: opens the engine that the settings name, serves HTTP, and says when it is ready.

Role: composition below `cli.py`. Returns the process's exit code: 0 after an orderly stop, 1 when the engine failed, 2 for what
is wrong in the settings or in the engine's profile, which the next start would find again.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
import uvloop
from fastapi import FastAPI

from server import logs
from server.app import create_app
from server.banner import banner, key_hint, key_shown, say
from server.engine.profiles import ProfileError
from server.engines import engine_opener
from server.gateway import Gateway
from server.http_protocol import HttpProtocol
from server.reload import Apply, Reloader
from server.settings import Settings
from server.store.errors import StoreError

SHUTDOWN_TIMEOUT_S = 2
BACKLOG = 4096
_OF_THE_PORT = (errno.EADDRINUSE, errno.EACCES)


def run(settings: Settings, load: Callable[[], Settings] | None = None, config: Path | None = None) -> int:
    """Serve until told to stop. `load` reads the settings again, at SIGHUP and when the file `config` has changed."""
    logs.configure(settings.log)
    started_s = time.monotonic()
    try:
        listener = bind(settings.http.host, settings.http.port)
        app = create_app(settings, engine_opener(settings))
    except (OSError, ValueError, StoreError) as error:
        say(f"error: {error}")
        return 2
    gateway: Gateway = app.state.gateway
    reloader = Reloader(settings, load or (lambda: settings), reloadable(gateway), path=config)
    gateway.background.append(reloader.run)
    server = Server(server_config(app))
    gateway.background.append(lambda: server.turn_away_once(gateway.drain_wanted))
    host, port = listener.getsockname()[:2]
    base_url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    model = gateway.models.models[0].name

    first_key: list[str] = []

    def made_first_key(secret: str) -> None:
        first_key.append(secret)
        say(f"the store was empty: tenant `default` has the API key {secret}\n(shown this once; only its SHA-256 is kept)")

    def ready() -> None:
        key = key_shown(settings, first_key)
        hint = key_hint(key, gateway.storage.keys, config)
        say(banner(base_url, model, key, hint, time.monotonic() - started_s))

    def drain() -> None:
        if gateway.failure is None and not gateway.opened.is_set():  # until then it takes no request
            say("stopping")
        elif gateway.failure is None:
            say(f"stopping: answers under way have {settings.http.drain_timeout_s} s to end; ask again to end them at once")
        gateway.drain()

    def drained() -> None:
        say("stopping the engine")
        server.end()

    gateway.storage.on_first_key = made_first_key
    gateway.on_ready = ready
    gateway.on_failure = server.stop
    gateway.on_drained = drained
    server.on_stop = drain
    server.on_hurry = gateway.end_answers
    server.on_hangup = reloader.ask
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve(sockets=[listener]))
    return exit_code(gateway.failure)


def exit_code(failure: BaseException | None) -> int:
    """Of a gateway that ends for `failure`: 2 for a mistake in the settings, which the next start would find again."""
    if failure is None:
        return 0
    return 2 if isinstance(failure, ProfileError) else 1


def reloadable(gateway: Gateway) -> dict[str, Apply]:
    """Which settings hold anew when the configuration is read again, and what makes them."""

    async def apply_tenants(settings: Settings) -> None:
        gateway.storage.check_open()  # what it was started with is applied first, whenever the store is reached
        await gateway.storage.registry.apply_tenants(settings.tenants)
        await gateway.storage.watch.refresh()

    async def apply_prices(settings: Settings) -> None:
        gateway.models.reprice(settings.models)

    async def apply_log(settings: Settings) -> None:
        logs.configure(settings.log)
        gateway.debug = settings.log.level == "debug"

    async def apply_operators(settings: Settings) -> None:
        gateway.operators.load(settings.tenancy.admin_key, settings.metrics.key)

    async def apply_key(settings: Settings) -> None:
        gateway.storage.keys.configure(settings.tenancy.key)

    return {
        "tenants": apply_tenants,
        "models.*.price_per_million_tokens_usd": apply_prices,
        "log": apply_log,
        "tenancy.key": apply_key,
        "tenancy.admin_key": apply_operators,
        "metrics.key": apply_operators,
    }


def server_config(app: FastAPI) -> uvicorn.Config:
    """How uvicorn serves a gateway's application."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=HttpProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",  # its warnings are of what clients send: anybody could fill the log with them
        access_log=False,
        server_header=False,
        proxy_headers=False,  # uvicorn would take the client's address from a header, and whom to believe from the environment
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        timeout_keep_alive=75,
        backlog=BACKLOG,
    )


class Server(uvicorn.Server):
    """uvicorn's server, which listens on while the gateway drains: who connects then is told to go elsewhere.

    The first signal drains, the second stops at once; either way the process ends with `run`'s exit code, not by the signal.
    """

    on_stop: Callable[[], None] = staticmethod(lambda: None)
    on_hurry: Callable[[], None] = staticmethod(lambda: None)
    on_hangup: Callable[[], None] = staticmethod(lambda: None)
    _stopping = False

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.on_hangup)
        yield
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Drain, which comes to `end`; asked twice, end at once."""
        if self._stopping:
            self.on_hurry()
            self.end()
        else:
            self._stopping = True
            self.on_stop()

    def end(self) -> None:
        """Listen no more, and stop."""
        self.should_exit = True

    async def turn_away_once(self, wanted: asyncio.Event) -> None:
        """Once `wanted`, close connections as they are idle: a client would come back here over what it keeps open."""
        await wanted.wait()
        for connection in list(self.server_state.connections):
            assert isinstance(connection, HttpProtocol)
            connection.turn_away()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As in uvicorn; but a connection that nobody has accepted yet is answered, which a closing listener would cut off."""
        last = [asyncio.ensure_future(self._tell(connection)) for listener in sockets or () for connection in _waiting(listener)]
        await super().shutdown(sockets)  # listens no more from here on
        if last:
            await asyncio.wait(last)

    async def _tell(self, connection: socket.socket) -> None:
        _, protocol = await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
        protocol.shutdown()

    def _protocol(self) -> HttpProtocol:
        return HttpProtocol(self.config, self.server_state, self.lifespan.state)


def _waiting(listener: socket.socket) -> Iterator[socket.socket]:
    """The connections that nobody has accepted yet."""
    listener.setblocking(False)
    with suppress(OSError):
        while True:
            yield listener.accept()[0]


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises `OSError` with the setting that is in the way, and what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        flag = "port" if error.errno in _OF_THE_PORT else "host"
        reason = str(error.strerror).partition(" (while attempting")[0]
        raise OSError(f"http.{flag}: can't listen on {host}:{port}: {reason}; choose another with `--{flag}`") from None
