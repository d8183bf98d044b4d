"""Which store counts limits, by the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.admission.memory import MemoryStore
from server.clock import Clock
from server.sections import MEMORY_URL, StorageSettings

if TYPE_CHECKING:
    from server.admission.redis_seeds import LedgerTotals
    from server.admission.redis_store import RedisStore


def make_limit_store(
    settings: StorageSettings, clock: Clock, ledger_totals: LedgerTotals | None = None
) -> MemoryStore | RedisStore:
    """The store at `storage.limits_url`. A `RedisStore` has a `run` that must run. `ledger_totals`: see there."""
    if settings.limits_url == MEMORY_URL:
        return MemoryStore(clock)
    from server.admission.redis_store import RedisStore  # loads the client, which takes a tenth of a second

    return RedisStore(settings.limits_url, clock, away=settings.limits_away, ledger_totals=ledger_totals)
