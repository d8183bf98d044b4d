"""What routes may ask for: the parts of one running gateway.

Role: made by `app.create_app`, filled by `lifespan` when store and engine are up. Nothing here is global: two gateways in a
process are independent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Final

from server import __version__
from server.admission.admission import Admission
from server.admission.fair_queue import FairQueue
from server.admission.seats import SeatsElsewhere
from server.admission.store import make_limit_store
from server.clock import Clock
from server.context import Tenant
from server.engine.base import Engine
from server.errors import DrainingError, EngineDeadError, LimitsAwayError, OverloadedError, RateLimitError
from server.generation import Generator
from server.held import HeldBytes
from server.loop_turns import LoopTurns
from server.media.loader import MediaLoader
from server.media.resolver import Resolve
from server.metrics.collectors import AdmissionFigures
from server.metrics.loop_lag import LoopLag
from server.metrics.recorder import Recorder
from server.models import ModelTable, ServedModel
from server.others import Others
from server.protocol.chat_body import BodyParser
from server.record import GenerationRecord
from server.schemas.library import SchemaLibrary
from server.settings import Settings
from server.storage import Storage
from server.streaming.answers import OpenAnswers
from server.streaming.sse import silence_rounds
from server.tenancy.isolation import CacheSalts
from server.tenancy.operators import OperatorKeys
from server.tracing.tracer import make_tracer

MAX_RECEIVED_BYTES: Final = 256 * 1024
TURNS_OF_RECEIVING: Final = 8
"""So much is read, of all connections that have much to say, in so many turns of the event loop; a token takes about as many."""


class Gateway:
    """One gateway.

    Raises `StoreError` for a URL that is no store's. `engine` is None until it is up. `on_ready` is called when store and engine
    are, `on_failure` when the engine is gone for good. `on_drained` is called when a gateway that is to stop has nothing more
    under way. `background`: what else runs as long as it. `resolve`: how the names of image hosts become addresses. Where it is
    one of several workers, `others` are all of them, `awaits_others` says that one is not up yet, and `seats_elsewhere` that they
    share an engine.
    """

    def __init__(self, settings: Settings, clock: Clock, resolve: Resolve | None = None) -> None:
        self.settings = settings
        self.clock = clock
        self.storage = Storage(settings, clock)
        self.operators = OperatorKeys(settings.tenancy.admin_key, settings.metrics.key)
        self.limits = make_limit_store(settings.storage, clock, self.storage.spent)
        self.admission = Admission(self.limits, clock)
        self.models = ModelTable(settings.models)
        self.schemas = SchemaLibrary()
        self.recorder = Recorder(settings.models, settings.metrics.max_tenants)
        engine = settings.engine
        self.recorder.describe(__version__, engine.kind, engine.profile if engine.kind == "vllm" else "")
        self.recorder.watch_admission(self._figures)
        self.receiving = LoopTurns(MAX_RECEIVED_BYTES, every=TURNS_OF_RECEIVING)
        self.parser = BodyParser()
        self.held = HeldBytes(settings.admission.max_held_bytes)
        self.media = MediaLoader(settings.media, clock, self.held, self.recorder.image, resolve)
        self.tracer = make_tracer(settings.tracing, clock)
        self.others: Others | None = None
        self.awaits_others = False
        self.seats_elsewhere: SeatsElsewhere | None = None
        self.opened = asyncio.Event()
        self.engine: Engine | None = None
        self.queue: FairQueue | None = None
        self.created_s = clock.unix_s()
        self.answers = OpenAnswers(settings.admission.request_timeout_s)
        self.draining = False
        self.drain_wanted = asyncio.Event()
        self.failure: BaseException | None = None
        self.silence_rounds = silence_rounds(settings.http.keepalive_interval_s)
        self.debug = settings.log.level == "debug"
        self.ignores_reserved_fields = settings.tenancy.reserved_fields == "ignore"
        self.background: list[Callable[[], Coroutine[None, None, None]]] = [LoopLag(clock, self.recorder.lagged).run]
        self.on_ready: Callable[[], None] = lambda: None
        self.on_failure: Callable[[], None] = lambda: None
        self.on_drained: Callable[[], None] = lambda: None
        self._generator: Generator | None = None
        self._service: Counter[str] = Counter()
        self._under_way: dict[int, GenerationRecord] = {}

    def open(self, engine: Engine, cache_secret: bytes) -> None:
        """Take requests from now on. `cache_secret`: what the tenants' prefix caches are kept apart by."""
        self.queue = FairQueue(engine.facts.seats, self.settings.admission, self.clock, engine.stats, self.seats_elsewhere)
        salts, formats = CacheSalts(cache_secret), self.models.formats
        known = self.settings.engine.known_texts_bytes
        self._generator = Generator(
            engine, self.clock, self, salts.of, formats, self.admission, self.queue, known_texts_bytes=known
        )
        self.recorder.watch(engine)
        self.engine = engine
        self.opened.set()

    def started(self, record: GenerationRecord) -> None:
        """A generation begins."""
        self._under_way[id(record)] = record
        self.recorder.started(record)

    def ended(self, record: GenerationRecord) -> None:
        """A generation has ended, however."""
        self._under_way.pop(id(record), None)
        self.recorder.ended(record)
        self.storage.ledger.ended(record)

    def refused(self, record: GenerationRecord) -> None:
        """A request has ended without a generation. What nobody can be charged with, or was no API's, is in no ledger."""
        self.recorder.refused(record)
        if record.tenant and record.api:
            self.storage.ledger.ended(record)

    def drain(self) -> None:
        """Take no more requests; those under way go on, for as long as the lifespan lets them.

        A request that has not come whole is none that is under way: its client may take for ever.
        """
        self.draining = True
        self.answers.end_unread(_turned_away)
        self.drain_wanted.set()

    def end_answers(self) -> None:
        """End what is under way, each with an error."""
        self.answers.end_all(lambda: DrainingError("this replica has shut down before the answer was whole; ask again"))

    def generator(self) -> Generator:
        """Where generations are started. Raises an `OverloadedError` while there is none."""
        self.check_ready()
        assert self._generator is not None
        return self._generator

    def precheck(self, tenant: Tenant, model: ServedModel, headers: dict[str, str]) -> None:
        """Raise the `RateLimitError` that any prompt of `tenant` would meet now; `headers` say more of it then."""
        try:
            self.admission.precheck(tenant, model)
        except RateLimitError:
            headers.update(self.admission.headers(tenant))
            raise

    def check_ready(self) -> None:
        """Raise the `OverloadedError` that says why no request can be taken now; return when one can."""
        if self.draining:
            raise _turned_away()
        self.storage.check_open()
        if self.engine is None:
            raise OverloadedError("the engine is still starting; try again in a moment")
        if self.engine.dead:
            raise EngineDeadError("the engine has died; this replica will restart", retry_after_s=30)
        if self.awaits_others:
            raise OverloadedError("another process of this replica is still starting; try again in a moment")
        if self.limits.is_away and self.settings.storage.limits_away == "closed":
            raise LimitsAwayError("the limits store can't be reached; try again in a moment")

    def under_way(self) -> Collection[GenerationRecord]:
        """The records of generations that have not ended, as far as they are filled in."""
        return self._under_way.values()

    def service(self) -> Mapping[str, float]:
        """What the fair queue has given each tenant since the start, in uncached input tokens; weights are left aside."""
        if self.queue is not None:
            self._service.update(self.queue.take_service())
        return self._service

    def _figures(self) -> AdmissionFigures:
        """What a scrape shows of admission."""
        queue, limits, tenants = self.queue, self.limits, self.storage.keys.tenants()
        left = ((name, self.admission.budget_remaining_ratio(tenant)) for name, tenant in tenants.items())
        return AdmissionFigures(
            queued=queue.queued_by_tenant() if queue else {},
            service=self.service(),
            weights={name: tenant.weight for name, tenant in tenants.items()},
            budget_left=left,
            ledger_rows=self.storage.ledger.counts,
            num_pending_rows=self.storage.ledger.num_pending,
            limits_up=not limits.is_away,
            num_limits_failures=limits.num_away,
            num_held_bytes=self.held.total,
        )


def _turned_away() -> DrainingError:
    return DrainingError("this replica is shutting down; try another, or again in a moment")
