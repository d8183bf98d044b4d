"""The state of one replica: whether it takes requests, and what is under way, for `/admin/v1/status` and the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from server.admission.memory import MemoryStore
from server.engine.base import EngineStats
from server.errors import OverloadedError
from server.gateway import Gateway
from server.whole import engine_of, engine_part

STATUS: Final = "status"
_WORST_FIRST: Final = ("engine_dead", "draining", "limits_unavailable", "overloaded", "away")


def status_of(gateway: Gateway) -> dict[str, Any]:
    """As JSON. What is under way is in requests: waiting for a seat, having one, and in the engine; left out before it is up."""
    storage = gateway.storage
    is_up = storage.opened.is_set() and not storage.watch.is_away
    return {
        "status": _state(gateway),
        "store": "up" if is_up else "away",
        "limits_store": "memory" if isinstance(gateway.limits, MemoryStore) else "away" if gateway.limits.is_away else "up",
        "pending_ledger_rows": storage.ledger.num_pending,
        **_work(gateway),
    }


def answer_status(gateway: Gateway) -> Iterator[bytes]:
    """As one of several workers."""
    yield engine_part(gateway)
    yield msgspec.json.encode(status_of(gateway))


async def whole_status(gateway: Gateway) -> dict[str, Any]:
    """As `status_of`, of all workers. Raises `OverloadedError` where one does not answer."""
    if gateway.others is None:
        return status_of(gateway)
    answers = await gateway.others.ask_all(STATUS)
    all_status: list[dict[str, Any]] = [msgspec.json.decode(status) for _, status in answers]
    whole = {name: _worst([status[name] for status in all_status]) for name in ("status", "store", "limits_store")}
    for name in ("pending_ledger_rows", "queued_requests", "seated_requests"):
        if all(name in status for status in all_status):
            whole[name] = sum(status[name] for status in all_status)
    if (engine := engine_of([part for part, _ in answers])) is not None:
        whole |= _engine_work(engine.stats)
    return {**whole, "workers": len(answers)}


def _worst(words: list[str]) -> str:
    """What is not well with some of them, rather than what is with the others."""
    return next((word for word in _WORST_FIRST if word in words), words[0])


def _state(gateway: Gateway) -> str:
    """`ready`, or why no request is taken: `draining`, `engine_dead`, `limits_unavailable`, or `overloaded` while it starts."""
    try:
        gateway.check_ready()
    except OverloadedError as error:
        return error.code or "overloaded"
    return "ready"


def _work(gateway: Gateway) -> dict[str, Any]:
    engine, queue = gateway.engine, gateway.queue
    if engine is None or queue is None:
        return {}
    stats = engine.stats
    return {
        "queued_requests": queue.num_queued,
        "seated_requests": queue.num_seated,
        **_engine_work(stats),
    }


def _engine_work(stats: EngineStats) -> dict[str, Any]:
    return {
        "engine_running_requests": stats.num_running,
        "engine_waiting_requests": stats.num_waiting,
        "kv_cache_usage": stats.kv_cache_usage,
    }
