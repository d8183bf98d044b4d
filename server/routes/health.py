"""`GET /health` (the process lives) and `GET /ready` (it can take a request now). No key."""

from __future__ import annotations

from fastapi import APIRouter, Request

from server.routes.gateway import gateway_of

router = APIRouter()


@router.api_route("/health", methods=["GET", "HEAD"])
async def health() -> dict[str, str]:
    """Answers as long as the process does."""
    return {"status": "ok"}


@router.api_route("/ready", methods=["GET", "HEAD"])
async def ready(request: Request) -> dict[str, str]:
    """200 when a request can be taken, 503 with the reason when not."""
    gateway_of(request).check_ready()
    return {"status": "ready"}
