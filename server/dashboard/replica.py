"""The state of one replica: whether it takes requests, and what is under way, for `/admin/v1/status` and the page."""

from __future__ import annotations

from typing import Any

from server.admission.memory import MemoryStore
from server.errors import OverloadedError
from server.gateway import Gateway


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
        "engine_running_requests": stats.num_running,
        "engine_waiting_requests": stats.num_waiting,
        "kv_cache_usage": stats.kv_cache_usage,
    }
