"""`GET /v1/models` and `GET /v1/models/{id}`: those the tenant may use."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from server.models import ServedModel
from server.routes.gateway import gateway_of

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The tenant's models."""
    models = gateway_of(request).models.open_to(request.state.tenant)
    return {"object": "list", "data": [_model(request, model) for model in models]}


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> dict[str, Any]:
    """One model, by name or alias."""
    return _model(request, gateway_of(request).models.resolve(name, request.state.tenant))


def _model(request: Request, model: ServedModel) -> dict[str, Any]:
    gateway = gateway_of(request)
    engine = gateway.engine
    return {
        "id": model.name,
        "object": "model",
        "created": gateway.created_s,
        "owned_by": "k3-gateway",
        "max_model_len": engine.facts.context_length if engine else None,
    }
