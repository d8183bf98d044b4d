"""What the admin routes share: the store behind them, and the reading of their bodies.

Role: between `routes/admin*.py` and the registry. Invariant: whatever is wrong with a body is said at once, each mistake with its
path, and nothing of that body holds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import orjson
import structlog
from fastapi import Request
from pydantic import TypeAdapter, ValidationError

from server.errors import InvalidRequestError, OverloadedError
from server.quoting import cut, shown
from server.routes.gateway import gateway_of
from server.setting_types import TENANT_NAME_RULE
from server.store.database import Database
from server.store.errors import StoreError
from server.tenancy.registry import Registry

log = structlog.get_logger(__name__)
T = TypeVar("T")
MAX_MISTAKES: Final = 50
_MAX_PATH_CHARS: Final = 200


def registry_of(request: Request) -> Registry:
    """The tenants and keys. Raises `OverloadedError` while the store is not up."""
    storage = gateway_of(request).storage
    storage.check_open()
    return storage.registry


def database_of(request: Request) -> Database:
    """The database. Raises as `registry_of` does."""
    storage = gateway_of(request).storage
    storage.check_open()
    return storage.database


@contextmanager
def reading() -> Iterator[None]:
    """A block that asks the store; what fails there is a 503."""
    try:
        yield
    except StoreError as error:
        raise OverloadedError(f"{error}; try again in a moment") from None  # no traceback in the log: nothing here is wrong


@asynccontextmanager
async def changing(request: Request) -> AsyncIterator[Registry]:
    """A block that changes the store; the change holds in this process when it ends, in others within a second."""
    with reading():
        yield registry_of(request)
    try:
        await gateway_of(request).storage.watch.refresh()
    except Exception as error:  # noqa: BLE001 - it is in the store; what was made must not be lost with the answer
        log.warning("refresh_failed", error=str(error), next="the watch comes to it")


async def body_of(request: Request, shape: TypeAdapter[T]) -> T:
    """The request's JSON as `shape`. Raises `InvalidRequestError` with every mistake."""
    body = await request.body()
    if not body.strip():
        raise InvalidRequestError("the request has no body; send a JSON object")
    try:
        values = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not JSON: {error}") from None
    try:
        return shape.validate_python(values)
    except ValidationError as error:
        raise invalid([_mistake(detail) for detail in error.errors(include_url=False)]) from None


def query_of(request: Request, *names: str) -> dict[str, str]:
    """The parameters of the URL. Raises `InvalidRequestError` for one that is none of `names`, or is there twice."""
    given = request.query_params
    for name, _ in given.multi_items():
        if name not in names:
            known = f"it takes {', '.join(f'`{known}`' for known in names)}" if names else "it takes none"
            raise InvalidRequestError(f"there is no parameter `{shown(name)}`; {known}", param=cut(name))
        if len(given.getlist(name)) > 1:
            raise InvalidRequestError(f"`{name}` is there more than once; give it once", param=name)
    return dict(given)


def invalid(mistakes: list[tuple[str, str]]) -> InvalidRequestError:
    """One error of all mistakes, each a path and what is wrong there."""
    texts = [f"{path}: {what}" if path else what for path, what in mistakes[:MAX_MISTAKES]]
    if len(mistakes) > MAX_MISTAKES:
        texts.append(f"and {len(mistakes) - MAX_MISTAKES} more mistakes")
    return InvalidRequestError("; ".join(texts), param=mistakes[0][0] or None)


def _mistake(detail: Any) -> tuple[str, str]:
    """Path and words of one of pydantic's errors, with the value where it is short and simple."""
    *parts, last = detail["loc"] or ("",)
    if last == "[key]":
        return "", f"`{shown(parts[-1])}` is no name of a tenant; {TENANT_NAME_RULE}"
    path = cut(".".join(str(part) for part in (*parts, last)), _MAX_PATH_CHARS)
    if detail["type"] == "extra_forbidden":
        return path, "there is no such field"
    if detail["type"] == "missing":
        return path, "is missing; it is required"
    value = detail["input"]
    if detail["type"] in ("model_type", "dict_type"):
        return path, f"`{shown(value)}`: must be an object, `{{}}` for none"
    what = detail["msg"].removeprefix("Value error, ")
    if what.startswith("`"):  # it has the value
        return path, what
    what = what[:1].lower() + what[1:]
    return path, f"`{shown(value)}`: {what}" if isinstance(value, str | int | float | bool | None) else what
