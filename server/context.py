"""Who asks, and under which name the request is known.

Role: facts about one request that several siblings need. Made by the edge (`middleware/`), read by everybody below.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Limits:
    """What a tenant may do at once and in any minute; None for no limit.

    `input_tokens` count whole prompts, `uncached_input_tokens` what of them was not in the prefix cache. `max_context_tokens`:
    prompt and answer of one request together.
    """

    requests_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    uncached_input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    max_context_tokens: int | None = None


@dataclass(slots=True, frozen=True)
class Budget:
    """What a tenant may spend in a calendar day and month (UTC); None for no bound. Tokens are input and output together."""

    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    nano_usd_per_day: int | None = None
    nano_usd_per_month: int | None = None


@dataclass(slots=True, frozen=True)
class MediaLimits:
    """Which images a tenant may send; None where the gateway's own bound is the only one.

    `max_total_bytes`: of all images of one request, as files; `max_total_pixels`: of all of them, decoded. `max_pixels`: of one
    image. `remote_urls`: whether the gateway fetches images for it; then from `allowed_hosts` alone, where there are any, and
    never from `denied_hosts`: names in lower case, each alone or, with a leading dot, with all names below it.
    """

    max_images: int | None = None
    max_image_bytes: int | None = None
    max_total_bytes: int | None = None
    max_pixels: int | None = None
    max_total_pixels: int | None = None
    remote_urls: bool = False
    allowed_hosts: tuple[str, ...] = ()
    denied_hosts: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class Tenant:
    """A customer of the gateway.

    `models`: names the tenant may use, or None for all. `cache_group`: tenants that name the same one share prefix-cache
    entries; None shares with nobody. `weight`: its share of a busy engine, against the others' weights. `suspended`: its keys
    are known, and refused.
    """

    name: str
    models: frozenset[str] | None = None
    cache_group: str | None = None
    weight: float = 1.0
    limits: Limits = Limits()
    budget: Budget = Budget()
    media: MediaLimits = MediaLimits()
    suspended: bool = False

    def may_use(self, model: str) -> bool:
        """Whether `model` (a configured name, not an alias) is open to this tenant."""
        return self.models is None or model in self.models


@dataclass(slots=True, frozen=True)
class RequestContext:
    """One request: its id (unique in this process, shown to the client), its tenant, and the id of the key it came with."""

    request_id: str
    tenant: Tenant
    key_id: str | None = None
