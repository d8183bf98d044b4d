"""`GET /metrics`: this gateway's figures, and vLLM's own where it runs, in Prometheus's text format."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from server import whole
from server.metrics.recorder import CONTENT_TYPE
from server.routes.gateway import gateway_of

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """All metrics as they are now, of all workers, written while they are sent."""
    gateway = gateway_of(request)
    text = gateway.recorder.exposition() if gateway.others is None else await whole.exposition(gateway.others)
    return StreamingResponse(text, headers={"content-type": CONTENT_TYPE})
