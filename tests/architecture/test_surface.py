"""What is reachable, and what is said of it: every route needs a key, every metric and error is in its table."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route

from server import errors, routes
from server.metrics import catalog
from server.middleware.authentication import PUBLIC_PATHS
from server.middleware.errors import error_response
from tests.conftest import StartGateway


def all_routes() -> list[tuple[str, str]]:
    """Method and path of every route of every module in `routes/`, parameters filled in."""
    modules = [importlib.import_module(f"server.routes.{found.name}") for found in pkgutil.iter_modules(routes.__path__)]
    return [
        (method, re.sub(r"\{.*?\}", "x", route.path))
        for module in modules
        if hasattr(module, "router")
        for route in module.router.routes
        if isinstance(route, Route)
        for method in sorted(route.methods)
    ]


def test_every_route_but_the_public_ones_needs_a_key(start_gateway: StartGateway) -> None:
    gateway = start_gateway(metrics={"access": "key"})
    with httpx.Client(base_url=gateway.url) as client:
        closed = {(method, path) for method, path in all_routes() if client.request(method, path).status_code == 401}

    assert {path for _, path in set(all_routes()) - closed} == PUBLIC_PATHS
    assert len(closed) >= 5


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/nothing", "/docs", "/openapi.json", "/admin/v1/keys", "//metrics", "/health/", "/ready/x"]
)
def test_unknown_paths_need_a_key_too(start_gateway: StartGateway, path: str) -> None:
    gateway = start_gateway()
    assert httpx.get(gateway.url + path).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic k3gw-test-key-0123456789"},
        {"x-api-key": ""},
        {"x-api-key": "k3gw-test-key-0123456789x"},
        {"x-api-key": "k" * 10_000},
    ],
)
def test_a_wrong_key_is_401_in_the_apis_shape_and_is_not_repeated(start_gateway: StartGateway, headers: dict[str, str]) -> None:
    response = httpx.get(start_gateway().url + "/v1/models", headers=headers)

    assert response.status_code == 401
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert response.headers["www-authenticate"] == "Bearer"
    assert not any(value and len(value) > 10 and value in response.text for value in headers.values())


def _error_classes(base: type[errors.GatewayError]) -> Iterator[type[errors.GatewayError]]:
    yield base
    for child in base.__subclasses__():
        yield from _error_classes(child)


@pytest.mark.parametrize("kind", list(_error_classes(errors.GatewayError)))
def test_every_error_says_how_it_is_shown(kind: type[errors.GatewayError]) -> None:
    error = kind("what went wrong")
    response = error_response(error)

    assert 400 <= kind.status < 600
    assert (kind.status < 500) == (
        kind.type
        in (
            "invalid_request_error",
            "authentication_error",
            "permission_error",
            "rate_limit_error",
            "insufficient_quota",
        )
    )
    assert kind.__doc__
    assert kind.__name__ in (errors.__doc__ or "")
    assert response.status_code == kind.status
    assert ("retry-after" in response.headers) == (kind.status in (429, 503))


def test_every_metric_is_in_the_catalog_and_every_one_of_the_catalog_is_exposed(start_gateway: StartGateway) -> None:
    gateway = start_gateway([{"reply": [{"text": "x"}, "stop"], "spec": {"draft": 4, "accepted": 2}}])
    body: dict[str, Any] = {"model": "kimi-k3", "messages": [{"role": "user", "content": "hi"}]}
    assert httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=gateway.headers).status_code == 200
    text = httpx.get(f"{gateway.url}/metrics").text

    families = {
        family.name: family.type for family in text_string_to_metric_families(text) if family.name.startswith(catalog.PREFIX)
    }
    expected = {catalog.PREFIX + metric.name.removesuffix("_total"): metric.kind for metric in catalog.CATALOG}
    assert {name: kind for name, kind in families.items() if not name.endswith("_created")} == expected


def test_label_names_are_closed_or_configured() -> None:
    """Those without a closed set are configured, or fixed at the start."""
    open_ones = {label.name for metric in catalog.CATALOG for label in metric.by if not label.values}
    assert {"tenant", "model"} == open_ones
    fixed = {label.name for label in catalog.BUILD_INFO.by}
    assert {"api", "outcome", "kind", "position", "reason"} == {
        label for metric in catalog.CATALOG for label in metric.labels
    } - open_ones - fixed
