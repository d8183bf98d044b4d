"""`GET /debug/engine`: what the scripted engine was asked. Mounted with that engine only."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from server.errors import NotFoundError
from server.routes.gateway import gateway_of

router = APIRouter()


@router.get("/debug/engine")
async def debug_engine(request: Request) -> dict[str, Any]:
    """Every recorded request and abort, oldest first."""
    recorded = getattr(gateway_of(request).engine, "recorded", None)
    if recorded is None:
        raise NotFoundError("this engine records nothing")
    record: dict[str, Any] = recorded()
    return record
