"""`GET /debug/engine`: what the scripted engine was asked. Mounted with that engine only.

Invariant: a tenant sees its own requests and aborts, and no others'; the admin key sees all.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from server.context import Tenant
from server.errors import NotFoundError
from server.routes.gateway import gateway_of

router = APIRouter()


@router.get("/debug/engine")
async def debug_engine(request: Request) -> dict[str, Any]:
    """Every recorded request and abort that may be seen, oldest first."""
    recorded = getattr(gateway_of(request).engine, "recorded", None)
    if recorded is None:
        raise NotFoundError("this engine records nothing")
    record: dict[str, Any] = recorded()
    tenant: Tenant | None = request.scope["state"].get("tenant")
    return record if tenant is None else _seen_by(tenant, record)


def _seen_by(tenant: Tenant, record: dict[str, Any]) -> dict[str, Any]:
    """What of `record` is `tenant`'s. An abort is whose request it ended, and nobody's where that is forgotten."""
    requests = [entry for entry in record["requests"] if entry["hints"]["tenant"] == tenant.name]
    own = {entry["request_id"] for entry in requests}
    return {"requests": requests, "aborts": [abort for abort in record["aborts"] if abort["request_id"] in own]}
