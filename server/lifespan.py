"""From start to stop: store and engine are opened beside the running server, watched, and closed at the end.

Invariant: all background work belongs to one task group; when the engine dies, or can't be opened, `gateway.failure` says why and
`on_failure` ends the process, so that a supervisor can restart it. A gateway that is to stop serves what it has under way for
`http.drain_timeout_s`; what is left then ends with an error.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import structlog
from fastapi import FastAPI

from server.admission.memory import MemoryStore
from server.engine.base import Engine
from server.engine.profiles import ProfileError
from server.errors import EngineDeadError
from server.gateway import Gateway
from server.store.errors import StoreError

OpenEngine = Callable[[], Awaitable[Engine]]
LAST_WORDS_S = 2.0
COLLECT_EVERY = 50_000
"""Objects between two garbage collections: some two hundred requests that begin. Python's own 700 are what two of them make."""

log = structlog.get_logger(__name__)


def lifespan_of(gateway: Gateway, open_engine: OpenEngine) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """The lifespan of one gateway's application."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        async with asyncio.TaskGroup() as tasks:
            stores = [tasks.create_task(_run_storage(gateway))]
            works = (lambda: _drain(gateway), gateway.media.run, *gateway.background)
            others = [tasks.create_task(_run_beside(gateway, work)) for work in works]
            if not isinstance(gateway.limits, MemoryStore):
                stores.append(tasks.create_task(_run_beside(gateway, gateway.limits.run)))
                others.append(tasks.create_task(_run_beside(gateway, lambda: _share_service(gateway))))
            if gateway.tracer is not None:
                stores.append(tasks.create_task(_run_beside(gateway, gateway.tracer.run)))
            engine = tasks.create_task(_run_engine(gateway, open_engine))
            yield
            gateway.draining = True
            for task in (engine, *others):
                task.cancel()
            await asyncio.wait([engine])  # what ends with it is settled, and has its rows in the ledger
            for task in stores:
                task.cancel()

    return lifespan


async def _run_beside(gateway: Gateway, work: Callable[[], Awaitable[None]]) -> None:
    """Work that should go on for as long as the gateway. If it fails, the gateway ends: half of one would help nobody."""
    try:
        await work()
    except Exception as error:
        log.exception("background_failed", error=str(error))
        gateway.failure = error
        gateway.on_failure()


async def _share_service(gateway: Gateway) -> None:
    """Count the service that tenants get together with the other replicas."""
    from redis.asyncio import Redis

    from server.admission.shared_service import SharedService

    await gateway.opened.wait()
    assert gateway.queue is not None
    # Its own time limits lose a cancellation that comes while they end; each exchange has one of ours.
    async with Redis.from_url(gateway.settings.storage.limits_url, socket_timeout=None, socket_connect_timeout=None) as redis:
        await SharedService(redis, gateway.queue).run()


async def _run_storage(gateway: Gateway) -> None:
    """The store: reached, followed, closed. One that can't be this gateway's ends it."""
    try:
        await gateway.storage.run(gateway.limits.seed)
    except Exception as error:
        log.error("store_failed", error=str(error), exc_info=not isinstance(error, StoreError))
        gateway.failure = error
        gateway.on_failure()


async def _run_engine(gateway: Gateway, open_engine: OpenEngine) -> None:
    """Open the engine, serve with it until it dies or the gateway stops, close it."""
    engine: Engine | None = None
    try:
        engine = await open_engine()
        await gateway.storage.opened.wait()
        gateway.open(engine, gateway.storage.cache_secret)
        gc.collect()
        gc.freeze()  # what start-up built lives as long as the process; the collector need not look at it again
        gc.set_threshold(COLLECT_EVERY)
        gateway.on_ready()
        await engine.wait_dead()
        raise EngineDeadError("the engine has died")
    except Exception as error:
        log.error("engine_failed", error=str(error), exc_info=not isinstance(error, (EngineDeadError, ProfileError)))
        gateway.failure = error
        gateway.on_failure()
    finally:
        if engine is not None:
            await engine.close()


async def _drain(gateway: Gateway) -> None:
    """Once the gateway is to stop: wait for its answers, end those that take too long, say when there are none."""
    await gateway.drain_wanted.wait()
    try:
        async with asyncio.timeout(gateway.settings.http.drain_timeout_s):
            await gateway.answers.wait_none_left()
    except TimeoutError:
        gateway.end_answers()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await gateway.answers.wait_none_left()
    gateway.on_drained()
