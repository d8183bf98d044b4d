"""`/admin/v1`: tenants, what was used, and the state of this replica. For the admin key only.

Role: the same as the command line, through the same registry, on a running gateway. Keys are in `admin_keys.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from pydantic import TypeAdapter
from starlette.responses import JSONResponse

from server.dashboard.replica import whole_status
from server.durations import seconds_of
from server.errors import InvalidRequestError, NotFoundError
from server.quoting import shown
from server.routes.admin_store import body_of, changing, database_of, invalid, query_of, reading, registry_of
from server.routes.gateway import gateway_of
from server.sections import TenantSettings
from server.setting_types import TenantName
from server.tenancy.rows import Changes, TenantInfo
from server.usage.report import BY, UsageLine, report

router = APIRouter(prefix="/admin/v1")
TENANT: Final = TypeAdapter(TenantSettings)
TENANTS: Final[TypeAdapter[dict[str, TenantSettings]]] = TypeAdapter(dict[TenantName, TenantSettings])


@router.get("/tenants")
async def list_tenants(request: Request) -> dict[str, Any]:
    """All tenants, by name."""
    query_of(request)
    with reading():
        return {"object": "list", "data": [_tenant(info) for info in await registry_of(request).tenants()]}


@router.put("/tenants")
async def put_tenants(request: Request) -> dict[str, Any]:
    """Create or change the tenants of a mapping, all or none; others stay."""
    query_of(request)
    return await _apply(request, await body_of(request, TENANTS), is_one=False)


@router.get("/tenants/{name}")
async def get_tenant(request: Request, name: str) -> dict[str, Any]:
    """One tenant."""
    query_of(request)
    with reading():
        infos = await registry_of(request).tenants()
    found = next((info for info in infos if info.name == name), None)
    if found is None:
        raise NotFoundError(f"there is no tenant `{shown(name)}`; `GET /admin/v1/tenants` lists them", param="name")
    return _tenant(found)


@router.put("/tenants/{name}")
async def put_tenant(request: Request, name: str) -> dict[str, Any]:
    """Create or change one tenant: its settings become those of the body, defaults where that has none."""
    query_of(request)
    return await _apply(request, {name: await body_of(request, TENANT)}, is_one=True)


@router.get("/usage")
async def get_usage(request: Request) -> dict[str, Any]:
    """What was used and what it cost."""
    wanted = query_of(request, "tenant", "since", "by")
    gateway, tenant = gateway_of(request), wanted.get("tenant")
    by = list(dict.fromkeys(name.strip() for name in wanted.get("by", "tenant").split(",")))
    if unknown := [name for name in by if name not in BY]:
        raise InvalidRequestError(f"by: `{shown(unknown[0])}` is nothing to group by; use {', '.join(BY)}", param="by")
    try:
        since_unix_s = gateway.clock.unix_s() - seconds_of(wanted.get("since", "7d"))
    except ValueError as error:
        raise InvalidRequestError(f"since: {error}", param="since") from None
    database = database_of(request)
    if tenant is not None and gateway.storage.keys.tenant(tenant) is None:
        raise NotFoundError(f"there is no tenant `{shown(tenant)}`; `GET /admin/v1/tenants` lists them", param="tenant")
    with reading():
        lines = await report(database, tenant=tenant, since_unix_ms=since_unix_s * 1000, by=by)
    return {"object": "list", "since_unix_s": since_unix_s, "by": by, "data": [_usage(line, by) for line in lines]}


@router.post("/drain")
async def drain(request: Request) -> JSONResponse:
    """Take no more requests, let those under way end, then stop the process."""
    query_of(request)
    gateway_of(request).drain()
    return JSONResponse({"status": "draining"}, status_code=202)


@router.get("/status")
async def get_status(request: Request) -> dict[str, Any]:
    """What this replica is doing, all its workers together."""
    query_of(request)
    return await whole_status(gateway_of(request))


async def _apply(request: Request, wanted: dict[str, TenantSettings], *, is_one: bool) -> dict[str, Any]:
    known = [model.name for model in gateway_of(request).models.models]
    mistakes = [
        (path if is_one else f"{name}.{path}", what)
        for name, settings in wanted.items()
        for path, what in _mistakes(settings, known)
    ]
    if mistakes:
        raise invalid(mistakes)
    async with changing(request) as registry:
        changes: Changes = await registry.apply_tenants(wanted)
    return {"created": changes.created, "changed": changes.changed, "unchanged": changes.unchanged}


def _mistakes(settings: TenantSettings, models: list[str]) -> Iterator[tuple[str, str]]:
    """What the types of settings can't know."""
    for model in settings.models or ():
        if model not in models:
            yield "models", f"there is no model `{shown(model)}`; models are: {', '.join(models)}"


def _tenant(info: TenantInfo) -> dict[str, Any]:
    return {
        "object": "tenant",
        "name": info.name,
        "created_unix_s": info.created_unix_s,
        "updated_unix_s": info.updated_unix_s,
        "settings": None if info.settings is None else info.settings.model_dump(mode="json"),
    }


def _usage(line: UsageLine, by: list[str]) -> dict[str, Any]:
    """What is not grouped by is left out."""
    values = msgspec.structs.asdict(line)
    grouped = {name: values.pop(name) for name in BY}
    return {**{name: grouped[name] for name in by}, **values, "cost_usd": line.cost_usd}
