"""What routes may ask for: the parts of one running gateway.

Role: made by `app.create_app`, filled by `lifespan` when the engine is up. Nothing here is global: two gateways in a process are
independent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from server.clock import Clock
from server.engine.base import Engine
from server.errors import DrainingError, EngineDeadError, OverloadedError
from server.generation import Generator
from server.metrics.recorder import Recorder
from server.models import ModelTable
from server.schemas.library import SchemaLibrary
from server.settings import Settings
from server.streaming.answers import OpenAnswers
from server.tenancy.isolation import CacheSalts
from server.tenancy.keys import KeyTable


class Gateway:
    """One gateway.

    `engine` is None until it is up; `on_ready` is called then, `on_failure` when it is gone for good. `on_drained` is called when
    a gateway that is to stop has nothing more under way.
    """

    def __init__(self, settings: Settings, keys: KeyTable, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.keys = keys
        self.models = ModelTable(settings.models)
        self.schemas = SchemaLibrary()
        self.recorder = Recorder()
        self.engine: Engine | None = None
        self.created_s = clock.unix_s()
        self.answers = OpenAnswers(settings.admission.request_timeout_s)
        self.draining = False
        self.drain_wanted = asyncio.Event()
        self.failure: BaseException | None = None
        self.keepalive_interval_s = settings.http.keepalive_interval_s
        self.debug = settings.log.level == "debug"
        self.on_ready: Callable[[], None] = lambda: None
        self.on_failure: Callable[[], None] = lambda: None
        self.on_drained: Callable[[], None] = lambda: None
        self._salts = CacheSalts()
        self._generator: Generator | None = None

    def open(self, engine: Engine) -> None:
        """Take requests from now on."""
        self._generator = Generator(engine, self.clock, self.recorder, self._salts.of, self.models.formats)
        self.recorder.watch(engine)
        self.engine = engine

    def drain(self) -> None:
        """Take no more requests; those under way go on, for as long as the lifespan lets them."""
        self.draining = True
        self.drain_wanted.set()

    def end_answers(self) -> None:
        """End what is under way, each with an error."""
        self.answers.end_all(DrainingError("this replica has shut down before the answer was whole; ask again"))

    def generator(self) -> Generator:
        """Where generations are started. Raises an `OverloadedError` while there is none."""
        self.check_ready()
        assert self._generator is not None
        return self._generator

    def check_ready(self) -> None:
        """Raise the `OverloadedError` that says why no request can be taken now; return when one can."""
        if self.draining:
            raise DrainingError("this replica is shutting down; try another, or again in a moment")
        if self.engine is None:
            raise OverloadedError("the engine is still starting; try again in a moment")
        if self.engine.dead:
            raise EngineDeadError("the engine has died; this replica will restart", retry_after_s=30)
