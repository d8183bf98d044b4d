"""`/admin/v1`: tenants, usage, drain and status."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert

from server.store.database import Database
from server.store.errors import StoreAwayError
from server.store.tables import ledger
from tests.routes.admin_gateway import ADMIN, AdminGateway

ACME = {"weight": 4, "models": ["kimi-k3"], "limits": {"requests_per_minute": 600}, "budget": {"usd_per_month": "900.5"}}


async def test_tenants_are_created_changed_and_shown(admin: AdminGateway) -> None:
    assert await admin.ok("GET", "/admin/v1/tenants") == {"object": "list", "data": []}
    assert await admin.ok("PUT", "/admin/v1/tenants", {"acme": ACME, "beta": {}}) == {
        "created": ["acme", "beta"],
        "changed": [],
        "unchanged": [],
    }
    assert await admin.ok("PUT", "/admin/v1/tenants", {"acme": ACME, "beta": {"weight": 2}}) == {
        "created": [],
        "changed": ["beta"],
        "unchanged": ["acme"],
    }
    acme = await admin.ok("GET", "/admin/v1/tenants/acme")
    assert (acme["object"], acme["name"], acme["settings"]["weight"], acme["settings"]["budget"]["usd_per_month"]) == (
        "tenant",
        "acme",
        4,
        "900.5",
    )
    assert [tenant["name"] for tenant in (await admin.ok("GET", "/admin/v1/tenants"))["data"]] == ["acme", "beta"]


async def test_what_is_shown_can_be_put_back(admin: AdminGateway) -> None:
    await admin.ok("PUT", "/admin/v1/tenants/acme", ACME)
    shown = (await admin.ok("GET", "/admin/v1/tenants/acme"))["settings"]

    assert (await admin.ok("PUT", "/admin/v1/tenants/acme", shown))["unchanged"] == ["acme"]
    assert (await admin.ok("PUT", "/admin/v1/tenants/acme", {}))["changed"] == ["acme"], "what is not said is the default again"


async def test_a_change_holds_when_the_answer_arrives(admin: AdminGateway) -> None:
    await admin.ok("PUT", "/admin/v1/tenants/acme", ACME)
    secret = (await admin.ok("POST", "/admin/v1/keys", {"tenant": "acme"}))["secret"]

    async def models() -> list[str]:
        return [model["id"] for model in (await admin.ok("GET", "/v1/models", key=secret))["data"]]

    assert await models() == ["kimi-k3"]
    await admin.ok("PUT", "/admin/v1/tenants/acme", {"models": ["small"]})
    assert await models() == ["small"]
    await admin.ok("PUT", "/admin/v1/tenants/acme", {"suspended": True})
    status, message, _ = await admin.error("GET", "/v1/models", key=secret)
    assert (status, "is suspended" in message) == (403, True)


MISTAKES: dict[str, tuple[Any, list[str]]] = {
    "an unknown field": ({"acme": {"weigth": 1}}, ["acme.weigth: there is no such field"]),
    "deep inside": ({"acme": {"limits": {"tpm": 1}}}, ["acme.limits.tpm: there is no such field"]),
    "a wrong value": ({"acme": {"weight": -1}}, ["acme.weight: `-1`: "]),
    "a wrong type": ({"acme": {"limits": 5}}, ["acme.limits: `5`: "]),
    "no object": ([], ["`[]`: must be an object"]),
    "a name that is none": ({"a b": {}}, ["`a b` is no name of a tenant"]),
    "an unknown model": ({"acme": {"models": ["gpt-4"]}}, ["acme.models: there is no model `gpt-4`; models are: kimi-k3, small"]),
    "an alias": ({"acme": {"models": ["default"]}}, ["acme.models: there is no model `default`"]),
    "money too fine": ({"acme": {"budget": {"usd_per_day": "0.0000000001"}}}, ["acme.budget.usd_per_day: "]),
    "several": ({"a": {"x": 1}, "b": {"weight": "heavy"}, "c": {}}, ["a.x: there is no such field", "b.weight: `heavy`: "]),
}


@pytest.mark.parametrize(("body", "said"), MISTAKES.values(), ids=MISTAKES.keys())
async def test_every_mistake_has_its_path_and_nothing_is_changed(one_admin: AdminGateway, body: Any, said: list[str]) -> None:
    status, message, param = await one_admin.error("PUT", "/admin/v1/tenants", body)

    assert status == 400
    parts = message.split("; ") if len(said) > 1 else [message]
    assert [part[: len(start)] for part, start in zip(parts, said, strict=True)] == said
    assert param == (said[0].partition(":")[0] if ":" in said[0] and not said[0].startswith("`") else None)
    assert (await one_admin.ok("GET", "/admin/v1/tenants"))["data"] == []


async def test_a_body_that_is_none_or_no_json_is_said(one_admin: AdminGateway) -> None:
    assert (await one_admin.error("PUT", "/admin/v1/tenants"))[:2] == (400, "the request has no body; send a JSON object")
    status, message, _ = await one_admin.error("PUT", "/admin/v1/tenants", content=b"{")
    assert (status, message.startswith("the body is not JSON: ")) == (400, True)


async def test_a_thousand_mistakes_are_not_all_told(one_admin: AdminGateway) -> None:
    status, message, _ = await one_admin.error("PUT", "/admin/v1/tenants", {f"t{n}": {"x": 1} for n in range(1000)})

    assert (status, message.endswith("; and 950 more mistakes")) == (400, True)
    assert len(message) < 4000


async def test_unknown_tenants_and_parameters_are_said(admin: AdminGateway) -> None:
    assert (await admin.error("GET", "/admin/v1/tenants/nobody"))[0] == 404
    assert (await admin.error("PUT", "/admin/v1/tenants/a b", {}))[0] == 400
    assert await admin.error("GET", "/admin/v1/tenants?limit=5") == (400, "there is no parameter `limit`; it takes none", "limit")
    assert (await admin.error("GET", "/admin/v1/usage?since=7d&since=8d"))[2] == "since"
    assert (await admin.error("GET", "/admin/v1/usage?tenant=nobody"))[0] == 404
    assert (await admin.error("GET", "/admin/v1/usage?since=soon"))[2] == "since"
    assert (await admin.ok("GET", "/admin/v1/usage?by=day,tenant,day"))["by"] == ["day", "tenant"]
    assert (await admin.error("GET", "/admin/v1/usage?by=colour"))[1].startswith("by: `colour` is nothing to group by")
    assert (await admin.error("GET", "/admin/v1/nothing"))[0] == 404
    status, message, _ = await admin.error("DELETE", "/admin/v1/tenants")
    assert (status, message) == (405, "`/admin/v1/tenants` does not take `DELETE`; it takes GET, PUT")


def row(number: int, tenant: str, model: str, ended_unix_s: float) -> dict[str, Any]:
    counts = dict.fromkeys(("reasoning_tokens", "discarded_tokens", "draft_tokens", "accepted_tokens", "images"), 0)
    return {
        "id": f"r{number}", "request_id": f"q{number}", "tenant": tenant, "key_id": None, "model": model, "api": "chat", "arrived_unix_ms": 0,
        "ended_unix_ms": int(ended_unix_s * 1000), "input_tokens": 100, "cached_tokens": 40, "output_tokens": 10, "finish_reason": "stop",
        "outcome": "finished", "cost_nano_usd": 1_500_000_000, **counts,
    }  # fmt: skip


async def test_usage_is_the_ledgers(admin: AdminGateway) -> None:
    await admin.ok("PUT", "/admin/v1/tenants", {"acme": {}, "beta": {}})
    now_s = admin.clock.unix_s()
    rows = [
        row(1, "acme", "kimi-k3", now_s - 10),
        row(2, "acme", "small", now_s - 20),
        row(3, "beta", "small", now_s - 30),
        row(4, "acme", "small", now_s - 8 * 86400),
    ]
    async with admin.gateway.storage.database.write() as connection:
        await connection.execute(insert(ledger), rows)

    all_of_it = await admin.ok("GET", "/admin/v1/usage")
    assert [(line["tenant"], line["requests"], line["cost_usd"]) for line in all_of_it["data"]] == [
        ("acme", 2, "3.00"),
        ("beta", 1, "1.50"),
    ]
    assert (all_of_it["by"], all_of_it["since_unix_s"]) == (["tenant"], now_s - 7 * 86400)
    mine = await admin.ok("GET", "/admin/v1/usage?tenant=acme&since=30d&by=tenant,model")
    assert [(line["tenant"], line["model"], line["requests"], line["input_tokens"]) for line in mine["data"]] == [
        ("acme", "kimi-k3", 1, 100),
        ("acme", "small", 2, 200),
    ]
    assert "day" not in mine["data"][0]


async def test_drain_takes_no_more_work(one_admin: AdminGateway) -> None:
    status = await one_admin.ok("GET", "/admin/v1/status")
    assert ("ready", "up", "memory") == (status["status"], status["store"], status["limits_store"])
    assert (0, 0, 0) == (status["pending_ledger_rows"], status["queued_requests"], status["seated_requests"])
    response = await one_admin.ask("POST", "/admin/v1/drain")

    assert (response.status_code, response.json()) == (202, {"status": "draining"})
    assert one_admin.gateway.drain_wanted.is_set()
    assert (await one_admin.ok("GET", "/admin/v1/status"))["status"] == "draining"


async def test_a_store_that_is_not_up_is_503() -> None:
    gateway = AdminGateway(None)
    try:
        for method, path, body in (
            ("GET", "/admin/v1/tenants", None),
            ("PUT", "/admin/v1/tenants", {"acme": {}}),
            ("GET", "/admin/v1/keys", None),
            ("POST", "/admin/v1/keys", {"tenant": "acme"}),
            ("GET", "/admin/v1/usage", None),
        ):
            response = await gateway.ask(method, path, body)
            assert (response.status_code, response.headers["retry-after"]) == (503, "5"), path
        assert (await gateway.ok("GET", "/admin/v1/status"))["store"] == "away"
    finally:
        await gateway.close()


async def test_a_store_that_goes_away_is_503_and_a_change_that_was_made_is_told(
    admin: AdminGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admin.ok("PUT", "/admin/v1/tenants/acme", {})

    async def away() -> None:
        raise StoreAwayError("the store is away")

    monkeypatch.setattr(admin.gateway.storage.watch, "refresh", away)
    assert (await admin.ok("POST", "/admin/v1/keys", {"tenant": "acme"}))["secret"], "the store has it, and nobody else is told"
    monkeypatch.setattr(Database, "read", lambda self: _Away())
    status, message, _ = await admin.error("GET", "/admin/v1/tenants")
    assert (status, message) == (503, "the store is away; try again in a moment")


class _Away:
    async def __aenter__(self) -> None:
        raise StoreAwayError("the store is away")

    async def __aexit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("path", ["tenants", "keys", "usage", "status"])
async def test_a_tenants_key_opens_none_of_it(one_admin: AdminGateway, path: str) -> None:
    await one_admin.ok("PUT", "/admin/v1/tenants/acme", {})
    secret = (await one_admin.ok("POST", "/admin/v1/keys", {"tenant": "acme"}))["secret"]

    assert await one_admin.opens(secret)
    assert (await one_admin.error("GET", f"/admin/v1/{path}", key=secret))[0] == 401
    assert not await one_admin.opens(ADMIN)
