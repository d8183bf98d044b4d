"""What the log says of requests, and what it never does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from server import logs
from server.clock import ManualClock
from server.errors import (
    AuthenticationError,
    EngineError,
    GatewayError,
    InsufficientQuotaError,
    InvalidRequestError,
    NotFoundError,
    RateLimitError,
)
from server.middleware.edge import EdgeMiddleware
from server.middleware.request_log import MAX_WRONG_KEYS_A_SECOND, without_keys
from server.sections import LogSettings
from tests.conftest import KEY

SECRETS = ["k3gw-" + "sEcReT-_0" * 5, "sk-proj-" + "sEcReT" * 6, "sEcReT" * 8]


@pytest.fixture(autouse=True)
def _loud() -> Iterator[None]:
    logs.configure(LogSettings(level="debug"))
    yield
    structlog.reset_defaults()
    logs.configure(LogSettings(level="error"))


async def ask(edge: EdgeMiddleware, path: str = "/v1/models", query: bytes = b"", headers: Any = ()) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": query, "headers": list(headers)}
    await edge(scope, None, send)  # type: ignore[arg-type]
    return sent


def failing(error: GatewayError, headers: dict[str, str] | None = None) -> EdgeMiddleware:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["is_nobody"] = isinstance(error, AuthenticationError)  # as the authentication middleware says it
        scope["state"]["headers"].update(headers or {})
        raise error

    return EdgeMiddleware(app, clock=ManualClock(), on_refused=lambda *_: None)


@pytest.mark.parametrize("secret", SECRETS)
async def test_a_key_in_the_url_is_not_logged(secret: str) -> None:
    with capture_logs() as lines:
        path = f"/v1/{secret}/models"
        await ask(failing(NotFoundError(f"there is no `{path}`; the API is below `/v1`")), path, f"key={secret}".encode())
        await ask(failing(AuthenticationError("no valid API key")), f"/{secret}", f"key={secret}".encode())

    assert [line["path"] for line in lines] == ["/v1/…/models", "/…"]
    assert "sEcReT" not in repr(lines)


async def test_a_key_of_ours_is_no_request_id_and_not_logged_from_a_body() -> None:
    with capture_logs() as lines:
        sent = await ask(
            failing(NotFoundError(f"there is no model `{SECRETS[0]}`")), headers=[(b"x-request-id", SECRETS[0].encode())]
        )

    assert "sEcReT" not in repr(lines)
    assert SECRETS[0].encode() not in dict(sent[0]["headers"])[b"x-request-id"]


@pytest.mark.parametrize(
    "path", ["/v1/models/moonshotai/Kimi-K3", "/admin/v1/keys/0123456789ab/rotate", "/v1/messages/count_tokens", "/"]
)
def test_our_paths_are_logged_whole(path: str) -> None:
    assert without_keys(path) == path


async def test_a_flood_of_wrong_keys_is_a_few_lines_and_a_count() -> None:
    edge = failing(AuthenticationError("no valid API key"))
    with capture_logs() as lines:
        for _ in range(100):
            await ask(edge)
        assert len(lines) == MAX_WRONG_KEYS_A_SECOND
        async with asyncio.timeout(60):
            while len(lines) == MAX_WRONG_KEYS_A_SECOND:
                await asyncio.sleep(0.05)
        assert (lines[-1]["event"], lines[-1]["num_requests"]) == ("wrong_keys_not_logged", 100 - MAX_WRONG_KEYS_A_SECOND)
        await ask(edge)
    assert lines[-1]["event"] == "request"


async def test_other_mistakes_are_logged_each() -> None:
    edge = failing(InvalidRequestError("wrong"))
    with capture_logs() as lines:
        for _ in range(100):
            await ask(edge)

    assert [line["event"] for line in lines] == ["request"] * 100


async def test_headers_that_a_request_has_collected_go_out_with_its_error_too() -> None:
    sent = await ask(failing(InvalidRequestError("wrong"), {"x-ratelimit-limit-requests": "60"}))

    assert dict(sent[0]["headers"])[b"x-ratelimit-limit-requests"] == b"60"
    assert KEY not in repr(sent)


def failure_of_the_engine() -> EngineError:
    error = EngineError("the engine failed on this request")
    try:
        raise OSError("the same for all")
    except OSError as cause:
        error.__cause__ = cause
    return error


async def test_a_cause_of_many_errors_is_logged_once() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise failure_of_the_engine()

    edge = EdgeMiddleware(app, clock=ManualClock(), on_refused=lambda *_: None)
    with capture_logs() as lines:
        for _ in range(3):
            await ask(edge)

    first, *others = lines
    assert "OSError: the same for all" in first["exception"]
    assert [first["request_id"]] * 2 == [line["same_cause_as"] for line in others]
    assert not any("exception" in line for line in others)


async def test_a_refused_request_has_its_outcome_in_the_log_and_nothing_that_it_said() -> None:
    with capture_logs() as lines:
        await ask(failing(InvalidRequestError("`temperature` is `a secret`; send a number", param="temperature")))

    (line,) = lines
    assert ("invalid", "invalid_value", "`temperature` is …; send a number") == (
        line["outcome"],
        line["error_code"],
        line["error"],
    )


async def test_what_asks_again_and_again_is_quiet_until_it_fails() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    well = EdgeMiddleware(app, clock=ManualClock(), on_refused=lambda *_: None)
    paths = ["/ready", "/metrics", "/dashboard/figures", "/dashboard/page.js", "/dashboard", "/dashboards"]
    with capture_logs() as lines:
        for path in paths:
            await ask(well, path)
            await ask(failing(NotFoundError("there is none")), path)

    assert [*(["debug", "info"] * 4), *["info"] * 4] == [line["log_level"] for line in lines]


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (AuthenticationError("`/metrics` takes `metrics.key`; send it"), "/metrics takes metrics.key; send it"),
        (RateLimitError("your limit is `2` requests per minute: 2 are used"), "your limit is 2 requests per minute: 2 are used"),
        (InsufficientQuotaError("your budget is `5` USD per day: 4 are spent"), "your budget is 5 USD per day: 4 are spent"),
        (NotFoundError("there is no `/my/words`"), "there is no …"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_is_not_the_clients_own_is_logged(error: GatewayError, logged: str) -> None:
    with capture_logs() as lines:
        await ask(failing(error), "/metrics")

    assert [logged] == [line["error"] for line in lines]
