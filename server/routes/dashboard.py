"""`/dashboard`: a page for operators, its files, and its figures as JSON. For the admin key, or from this machine."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.dashboard.dashboard import Asked, Dashboard
from server.dashboard.files import HEADERS, File
from server.dashboard.tenants import MAX_ROWS, SORTS, View
from server.errors import InvalidRequestError, NotFoundError
from server.quoting import shown
from server.routes.admin_store import query_of

router = APIRouter()
PAGE: Final = "page.html"


@router.get("/dashboard")
async def page(request: Request) -> Response:
    """The page; everything in it comes from below its own path."""
    return _sent(request, _files_of(request)[PAGE])


@router.get("/dashboard/")
async def with_slash() -> Response:
    """Where the page is: its links are relative to that. So is this one, as the scheme before a proxy is not known here."""
    return Response(status_code=308, headers={**HEADERS, "location": "../dashboard"})


@router.get("/dashboard/figures")
async def figures(request: Request) -> Response:
    """What the page shows."""
    wanted = query_of(request, "epoch", "since", "filter", "sort", "order", "page", "rows")
    sort, order = wanted.get("sort", "traffic"), wanted.get("order", "desc")
    if sort not in SORTS:
        raise InvalidRequestError(f"sort: `{shown(sort)}` is nothing to sort by; use {', '.join(SORTS)}", param="sort")
    if order not in ("asc", "desc"):
        raise InvalidRequestError(f"order: `{shown(order)}` is no order; use `asc` or `desc`", param="order")
    view = View(
        text=wanted.get("filter", ""),
        sort=sort,
        descending=order == "desc",
        page=_number(wanted, "page", 0),
        num_rows=min(max(_number(wanted, "rows", 25), 1), MAX_ROWS),
    )
    dashboard: Dashboard = request.app.state.dashboard
    asked = Asked(wanted.get("epoch", ""), _number(wanted, "since", 0), view)
    headers = {**HEADERS, "cache-control": "no-store"}
    return Response(await dashboard.answer(asked.encoded), headers=headers, media_type="application/json")


@router.get("/dashboard/{name}")
async def file(request: Request, name: str) -> Response:
    """A file of the page."""
    found = _files_of(request).get(name)
    if found is None or name == PAGE:
        raise NotFoundError(f"there is no `/dashboard/{shown(name)}`; the page is `/dashboard`")
    return _sent(request, found)


def _files_of(request: Request) -> dict[str, File]:
    files: dict[str, File] = request.app.state.dashboard_files
    return files


def _sent(request: Request, file: File) -> Response:
    headers = {**HEADERS, "etag": file.etag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


def _number(wanted: dict[str, str], name: str, default: int) -> int:
    text = wanted.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > 12:
        raise InvalidRequestError(f"{name}: `{shown(text)}` is no whole number from 0 on", param=name)
    return int(text)
