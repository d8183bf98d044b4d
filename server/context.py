"""Who asks, and under which name the request is known.

Role: facts about one request that several siblings need. Made by the edge (`middleware/`), read by everybody below.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Tenant:
    """A customer of the gateway.

    `models`: names the tenant may use, or None for all. `cache_group`: tenants of one group share prefix-cache entries.
    """

    name: str
    models: frozenset[str] | None = None
    cache_group: str = ""

    def may_use(self, model: str) -> bool:
        """Whether `model` (a configured name, not an alias) is open to this tenant."""
        return self.models is None or model in self.models


@dataclass(slots=True, frozen=True)
class RequestContext:
    """One request: its id (unique in this process, shown to the client), its tenant, and the id of the key it came with."""

    request_id: str
    tenant: Tenant
    key_id: str | None = None
