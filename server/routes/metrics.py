"""`GET /metrics`: this gateway's figures, and vLLM's own where it runs, in Prometheus's text format."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.routes.gateway import gateway_of

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """All metrics as they are now."""
    text, content_type = await gateway_of(request).recorder.exposition()
    return Response(text, headers={"content-type": content_type})
