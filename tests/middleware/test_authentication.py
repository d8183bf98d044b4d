"""Which key opens what, as a client sees it."""

from __future__ import annotations

import asyncio
import base64
import http
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from starlette.types import Receive, Scope, Send

from server.clock import ManualClock
from server.context import Tenant
from server.errors import AuthenticationError, OverloadedError, PermissionDeniedError
from server.middleware.authentication import AuthenticationMiddleware
from server.middleware.wrong_keys import ADDRESS_BURST, MAX_PAUSING, WrongKeys
from server.tenancy.keys import KeyTable
from server.tenancy.operators import OperatorKeys
from tests.conftest import KEY, StartGateway

ADMIN = "the-admin-key-of-tests"
READER = "the-metrics-key-of-tests"


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


PATHS = {  # path -> the keys that open it
    "/v1/models": {KEY},
    "/metrics": {ADMIN, READER},
    "/dashboard": {ADMIN},
    "/dashboard/figures": {ADMIN},
    "/dashboard/nothing": {ADMIN},
    "/dashboards": {KEY},
    "/admin/v1/tenants": {ADMIN},
    "/admin/v1/nothing": {ADMIN},
    "/admin": {ADMIN},
    "/administrators": {KEY},
    "/debug/engine": {KEY, ADMIN},
    "/nothing": {KEY},
}


@pytest.mark.parametrize("path", PATHS)
def test_a_key_opens_what_it_is_for_and_nothing_else(start_gateway: StartGateway, path: str) -> None:
    gateway = start_gateway(tenancy={"key": KEY, "admin_key": ADMIN}, metrics={"access": "key", "key": READER})
    opened = {
        key
        for key in (KEY, ADMIN, READER, None, ADMIN[:-1], ADMIN + "x", ADMIN.upper())
        if httpx.get(gateway.url + path, headers=bearer(key)).status_code != http.HTTPStatus.UNAUTHORIZED
    }

    assert opened == PATHS[path]


@pytest.mark.parametrize("header", ["forwarded", "x-forwarded-for", "x-real-ip", "X-Forwarded-For"])
@pytest.mark.parametrize("value", ["127.0.0.1", "for=127.0.0.1", "203.0.113.9", ""])
def test_what_comes_through_a_proxy_on_this_machine_is_not_from_here(
    start_gateway: StartGateway, header: str, value: str
) -> None:
    gateway = start_gateway(tenancy={"key": KEY, "admin_key": ADMIN})

    for url in (f"{gateway.url}/metrics", f"{gateway.url}/dashboard"):
        assert httpx.get(url).status_code == 200
        assert httpx.get(url, headers={header: value}).status_code == 401
        assert httpx.get(url, headers={header: value, **bearer(ADMIN)}).status_code == 200


@pytest.mark.parametrize("key", [None, KEY, ADMIN])
def test_without_an_admin_key_nothing_opens_admin(start_gateway: StartGateway, key: str | None) -> None:
    gateway = start_gateway(tenancy={"admin_key": None})
    response = httpx.get(f"{gateway.url}/admin/v1/tenants", headers=bearer(key))

    assert response.status_code == 401
    assert "no admin key is set (`tenancy.admin_key`)" in response.json()["error"]["message"]


def basic(password: str, user: str = "anybody") -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_a_password_opens_the_dashboard_alone(start_gateway: StartGateway) -> None:
    gateway = start_gateway(tenancy={"key": KEY, "admin_key": ADMIN}, metrics={"access": "key", "key": READER})
    opened = {
        (path, key)
        for path in PATHS
        for key in (KEY, ADMIN, READER, "", ADMIN[:-1], f"{ADMIN}x")
        if httpx.get(gateway.url + path, headers=basic(key)).status_code != http.HTTPStatus.UNAUTHORIZED
    }

    assert opened == {(path, ADMIN) for path in ("/dashboard", "/dashboard/figures", "/dashboard/nothing")}


def test_which_passwords_a_browser_may_send(start_gateway: StartGateway) -> None:
    gateway = start_gateway(tenancy={"key": KEY, "admin_key": ADMIN}, metrics={"access": "key"})
    good, two = basic(ADMIN), [("authorization", basic(ADMIN)["authorization"]), ("authorization", basic(KEY)["authorization"])]
    opens: list[tuple[Any, bool]] = [
        (basic(ADMIN, ""), True),
        (basic(ADMIN, "üser"), True),
        ({**good, "x-api-key": ADMIN}, True),
        ({"authorization": good["authorization"].replace("Basic", "bAsIc")}, True),
        ({**good, "x-api-key": KEY}, False),
        (basic(f"{ADMIN}:"), False),
        (basic(""), False),
        ({"authorization": f"Basic {ADMIN}"}, False),
        ({"authorization": "Basic"}, False),
        ({"authorization": "Basic " + base64.b64encode(ADMIN.encode()).decode()}, False),
        ({"authorization": "Basic " + "QQ" * 5000}, False),
        ({"authorization": f"Digest {ADMIN}"}, False),
        (two, False),
    ]
    for headers, may in opens:
        response = httpx.get(f"{gateway.url}/dashboard/figures", headers=headers)
        assert response.status_code == (200 if may else 401), headers
        assert ADMIN not in response.text


def test_a_browser_is_asked_for_the_password_where_one_would_open_something(start_gateway: StartGateway) -> None:
    gateway = start_gateway(tenancy={"key": KEY, "admin_key": ADMIN}, metrics={"access": "key"})
    challenges = {
        path: httpx.get(gateway.url + path).headers.get_list("www-authenticate")
        for path in ("/dashboard", "/dashboard/figures", "/metrics", "/admin/v1/status", "/v1/models", "/dashboards")
    }
    asked = ["Bearer", 'Basic realm="k3-gateway", charset="UTF-8"']
    assert {
        path: asked if path.startswith("/dashboard") and path != "/dashboards" else ["Bearer"] for path in challenges
    } == challenges
    without = start_gateway(tenancy={"admin_key": None}, metrics={"access": "key"})
    response = httpx.get(f"{without.url}/dashboard")
    assert (response.status_code, response.headers.get_list("www-authenticate")) == (401, ["Bearer"])
    assert "no admin key is set" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/figures", "/metrics"])
def test_what_needs_no_key_from_here_is_open_only_under_a_name_of_this_machine(start_gateway: StartGateway, path: str) -> None:
    gateway = start_gateway(tenancy={"key": KEY, "admin_key": ADMIN})
    names = {
        "localhost": 200,
        "localhost:8000": 200,
        "127.0.0.1:1": 200,
        "[::1]:8000": 200,
        "rebound.example:8000": 401,
        "127.0.0.1.rebound.example": 401,
        "localhost.rebound.example": 401,
        "[::1": 401,
        "": 401,
    }

    answers = {name: httpx.get(gateway.url + path, headers={"host": name}) for name in names}
    assert names == {name: answer.status_code for name, answer in answers.items()}
    for name, answer in answers.items():
        assert answer.is_success or "under `localhost` or `127.0.0.1`" in answer.json()["error"]["message"]
        assert httpx.get(gateway.url + path, headers={"host": name, **bearer(ADMIN)}).status_code == 200


def test_without_any_key_it_is_said_what_opens_the_metrics(start_gateway: StartGateway) -> None:
    gateway = start_gateway(tenancy={"admin_key": None}, metrics={"access": "key"})
    message = httpx.get(f"{gateway.url}/metrics").json()["error"]["message"]

    assert "no `metrics.key` and no admin key is set; nothing opens `/metrics` until there is one" == message


async def test_wrong_passwords_are_braked_like_wrong_keys() -> None:
    num_waits = 0

    async def wait(_: float) -> None:
        nonlocal num_waits
        num_waits += 1

    door = Door(wait=wait)
    for _ in range(ADDRESS_BURST + 3):
        with pytest.raises(AuthenticationError):
            await door.knock("a-wrong-password", path="/dashboard", scheme="Basic")
    assert num_waits == 3


def test_an_open_gateway_keeps_admin_closed(start_gateway: StartGateway) -> None:
    gateway = start_gateway(tenancy={"auth": "off", "admin_key": ADMIN})

    assert httpx.get(f"{gateway.url}/v1/models").status_code == 200
    assert httpx.get(f"{gateway.url}/admin/v1/status").status_code == 401
    assert httpx.get(f"{gateway.url}/admin/v1/status", headers=bearer(ADMIN)).status_code == 200


def test_the_metrics_key_alone_is_no_admin_key() -> None:
    operators = OperatorKeys(None, SecretStr(READER))

    assert [operators.opens_metrics(key) for key in (READER.encode(), b"", None)] == [True, False, False]
    assert [operators.is_admin(key) for key in (READER.encode(), b"", None, bytes(32))] == [False] * 4
    assert READER not in repr(vars(operators))


class Door:
    """The middleware before an application that notes who has come in."""

    def __init__(self, *, keys: KeyTable | None = None, wait: Callable[[float], Any] = asyncio.sleep) -> None:
        self.came_in: list[Scope] = []
        self.clock = ManualClock()
        self.wrong_keys = WrongKeys(self.clock, wait=wait)
        self._keys = keys or KeyTable()
        self._keys.add(KEY, Tenant("acme"))
        self._door = AuthenticationMiddleware(
            self._app, keys=self._keys, metrics_from_loopback=False, operators=OperatorKeys(), wrong_keys=self.wrong_keys
        )

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.came_in.append(scope)

    async def knock(self, key: str, address: str = "198.51.100.7", *, path: str = "/v1/models", scheme: str = "Bearer") -> Scope:
        """The scope behind the door. Raises as it does."""
        secret = base64.b64encode(f"user:{key}".encode()).decode() if scheme == "Basic" else key
        headers = [(b"authorization", f"{scheme} {secret}".encode())]
        state: dict[str, Any] = {"log": {}, "headers": {}}
        scope = {"type": "http", "path": path, "headers": headers, "client": (address, 1), "state": state}
        await self._door(scope, None, None)  # type: ignore[arg-type]
        return scope

    async def knock_wrongly(self, address: str = "198.51.100.7") -> dict[str, str]:
        """The extra headers of the answer to a wrong key."""
        state: dict[str, Any] = {"log": {}, "headers": {}}
        scope = {"type": "http", "path": "/v1/models", "headers": [], "client": (address, 1), "state": state}
        with pytest.raises(AuthenticationError):
            await self._door(scope, None, None)  # type: ignore[arg-type]
        assert state["is_nobody"]
        headers: dict[str, str] = state["headers"]
        return headers


async def test_a_suspended_tenant_is_told_so() -> None:
    keys = KeyTable()
    keys.add("suspended-tenants-key", Tenant("closed", suspended=True))
    door = Door(keys=keys)

    with pytest.raises(PermissionDeniedError, match="`closed` is suspended"):
        await door.knock("suspended-tenants-key")
    assert door.came_in == []
    assert (await door.knock(KEY))["state"]["tenant"].name == "acme"


async def test_wrong_keys_beyond_the_burst_wait_and_valid_ones_never_do() -> None:
    waits_s: list[float] = []
    opened = asyncio.Event()

    async def wait(seconds: float) -> None:
        waits_s.append(seconds)
        await opened.wait()

    door = Door(wait=wait)
    for _ in range(ADDRESS_BURST):
        assert await door.knock_wrongly() == {}
    assert waits_s == []
    async with asyncio.TaskGroup() as tasks:
        late = [tasks.create_task(door.knock_wrongly()) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert waits_s == pytest.approx([2.0, 2.002, 2.004])
        assert not any(task.done() for task in late)
        assert (await door.knock(KEY))["state"]["tenant"].name == "acme"
        assert await door.knock_wrongly("203.0.113.1") == {}, "another address waits for it"
        opened.set()
    assert door.wrong_keys.num_pausing == 0
    assert len(waits_s) == 3


async def test_keys_that_nobody_can_judge_yet_are_braked_too() -> None:
    num_waits = 0

    async def wait(_: float) -> None:
        nonlocal num_waits
        num_waits += 1

    door = Door(keys=KeyTable(awaits_store=True), wait=wait)
    for _ in range(ADDRESS_BURST + 3):
        with pytest.raises(OverloadedError):
            await door.knock("a-key-that-may-be-in-the-store")
    assert num_waits == 3
    assert (await door.knock(KEY))["state"]["tenant"].name == "acme"


def test_an_operators_key_can_be_replaced() -> None:
    operators = OperatorKeys(SecretStr(ADMIN), SecretStr(READER))
    operators.load(SecretStr("another-admin-key"), None)

    assert [operators.is_admin(key) for key in (ADMIN.encode(), b"another-admin-key")] == [False, True]
    assert [operators.opens_metrics(key) for key in (READER.encode(), ADMIN.encode(), b"another-admin-key")] == [
        False,
        False,
        True,
    ]


async def test_who_stops_is_forgiven() -> None:
    num_waits = 0

    async def wait(_: float) -> None:
        nonlocal num_waits
        num_waits += 1

    door = Door(wait=wait)
    for _ in range(ADDRESS_BURST + 100):
        await door.knock_wrongly()
    assert num_waits == 100
    door.clock.advance(ADDRESS_BURST * 0.5)
    for _ in range(ADDRESS_BURST):
        await door.knock_wrongly()
    assert num_waits == 100


async def test_when_too_many_wait_the_connection_is_closed_at_once() -> None:
    opened = asyncio.Event()

    async def wait(_: float) -> None:
        await opened.wait()

    door = Door(wait=wait)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(ADDRESS_BURST + MAX_PAUSING):
            tasks.create_task(door.knock_wrongly())
        while door.wrong_keys.num_pausing < MAX_PAUSING:
            await asyncio.sleep(0)
        assert await door.knock_wrongly() == {"connection": "close"}
        opened.set()


async def test_a_client_that_leaves_while_it_waits_leaves_no_trace() -> None:
    door = Door(wait=asyncio.sleep)
    for _ in range(ADDRESS_BURST):
        await door.knock_wrongly()
    async with asyncio.TaskGroup() as tasks:
        late = tasks.create_task(door.knock_wrongly())
        while door.wrong_keys.num_pausing == 0:
            await asyncio.sleep(0)
        late.cancel()
    assert door.wrong_keys.num_pausing == 0
