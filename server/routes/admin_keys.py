"""`/admin/v1/keys`: list, create, rotate and revoke API keys. For the admin key only.

Invariant: a secret is in the answer that creates it and nowhere else; no cache may keep that answer.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Request
from pydantic import AfterValidator, Field, TypeAdapter, model_validator
from starlette.responses import JSONResponse

from server.durations import seconds_of
from server.routes.admin_store import body_of, changing, query_of, reading, registry_of
from server.routes.gateway import gateway_of
from server.setting_types import Section
from server.tenancy.registry import MAX_LIFETIME_S
from server.tenancy.rows import KeyInfo

router = APIRouter(prefix="/admin/v1/keys")


def _checked(least: int) -> AfterValidator:
    def checked(duration: str) -> str:
        seconds_of(duration, least=least)
        return duration

    return AfterValidator(checked)


Duration = Annotated[str, _checked(0)]
Seconds = Annotated[int, Field(strict=True, ge=0, le=MAX_LIFETIME_S)]


class NewKey(Section):
    """What a key is made of: `expires_in_s` or `expires` (`90d`), or neither for one that does not expire."""

    tenant: str
    name: str = ""
    expires_in_s: Annotated[int, Field(strict=True, ge=1, le=MAX_LIFETIME_S)] | None = None
    expires: Annotated[str, _checked(1)] | None = None

    @model_validator(mode="after")
    def _once(self) -> NewKey:
        if self.expires is not None and self.expires_in_s is not None:
            raise ValueError("has both `expires` and `expires_in_s`; send one of them")
        return self

    @property
    def lifetime_s(self) -> int | None:
        """Seconds, or None for a key that does not expire."""
        return self.expires_in_s if self.expires is None else seconds_of(self.expires)


class Rotation(Section):
    """For how long the old key works beside the new one: `overlap_s` or `overlap` (`24h`)."""

    overlap_s: Seconds | None = None
    overlap: Duration | None = None

    @model_validator(mode="after")
    def _once(self) -> Rotation:
        if (self.overlap is None) == (self.overlap_s is None):
            raise ValueError("must have `overlap` or `overlap_s`, one of them: for how long the old key works on")
        return self

    @property
    def seconds(self) -> int:
        """The overlap."""
        return self.overlap_s or 0 if self.overlap is None else seconds_of(self.overlap)


NEW_KEY: Final = TypeAdapter(NewKey)
ROTATION: Final = TypeAdapter(Rotation)


@router.get("")
async def list_keys(request: Request) -> dict[str, Any]:
    """All keys, or one tenant's, oldest first."""
    wanted = query_of(request, "tenant")
    with reading():
        infos = await registry_of(request).keys(wanted.get("tenant"))
    return {"object": "list", "data": [_key(request, info) for info in infos]}


@router.post("")
async def create_key(request: Request) -> JSONResponse:
    """A new key of a tenant, and its secret."""
    query_of(request)
    wanted = await body_of(request, NEW_KEY)
    async with changing(request) as registry:
        info, secret = await registry.create_key(wanted.tenant, wanted.name, wanted.lifetime_s)
    return _with_secret(request, info, secret)


@router.delete("/{key_id}")
async def revoke_key(request: Request, key_id: str) -> dict[str, Any]:
    """Refuse a key from now on."""
    query_of(request)
    async with changing(request) as registry:
        info = await registry.revoke_key(key_id)
    return _key(request, info)


@router.post("/{key_id}/rotate")
async def rotate_key(request: Request, key_id: str) -> JSONResponse:
    """A new key in place of an old one, which works on for the overlap."""
    query_of(request)
    wanted = await body_of(request, ROTATION)
    async with changing(request) as registry:
        info, secret = await registry.rotate_key(key_id, wanted.seconds)
    return _with_secret(request, info, secret)


def _with_secret(request: Request, info: KeyInfo, secret: str) -> JSONResponse:
    return JSONResponse({**_key(request, info), "secret": secret}, status_code=201, headers={"cache-control": "no-store"})


def _key(request: Request, info: KeyInfo) -> dict[str, Any]:
    return {
        "object": "key",
        "id": info.id,
        "tenant": info.tenant,
        "name": info.name,
        "state": info.state(gateway_of(request).clock.unix_s()),
        "created_unix_s": info.created_unix_s,
        "expires_unix_s": info.expires_unix_s,
        "revoked_unix_s": info.revoked_unix_s,
    }
