"""`/admin/v1/keys`: from creation to revocation, on a running gateway."""

from __future__ import annotations

from typing import Any

import pytest

from tests.routes.admin_gateway import AdminGateway


@pytest.fixture
async def acme(admin: AdminGateway) -> AdminGateway:
    await admin.ok("PUT", "/admin/v1/tenants", {"acme": {}, "beta": {}})
    return admin


async def test_a_secret_is_told_once(acme: AdminGateway) -> None:
    response = await acme.ask("POST", "/admin/v1/keys", {"tenant": "acme", "name": "laptop"})
    made = response.json()
    secret = made.pop("secret")

    assert (response.status_code, response.headers["cache-control"]) == (201, "no-store")
    assert (made["object"], made["tenant"], made["name"], made["state"], made["expires_unix_s"]) == (
        "key",
        "acme",
        "laptop",
        "active",
        None,
    )
    assert await acme.opens(secret)
    assert await acme.ok("GET", "/admin/v1/keys") == {"object": "list", "data": [made]}
    assert secret not in (await acme.ask("GET", "/admin/v1/keys?tenant=acme")).text


async def test_keys_are_listed_by_tenant(acme: AdminGateway) -> None:
    for tenant in ("acme", "beta", "acme"):
        await acme.ok("POST", "/admin/v1/keys", {"tenant": tenant})

    assert len((await acme.ok("GET", "/admin/v1/keys"))["data"]) == 3
    assert [key["tenant"] for key in (await acme.ok("GET", "/admin/v1/keys?tenant=acme"))["data"]] == ["acme", "acme"]
    assert (await acme.error("GET", "/admin/v1/keys?tenant=nobody"))[0] == 404


async def test_a_revoked_key_is_refused_when_the_answer_arrives(acme: AdminGateway) -> None:
    made = await acme.ok("POST", "/admin/v1/keys", {"tenant": "acme"})
    revoked = await acme.ok("DELETE", f"/admin/v1/keys/{made['id']}")

    assert (revoked["state"], await acme.opens(made["secret"])) == ("revoked", False)
    assert (await acme.ok("DELETE", f"/admin/v1/keys/{made['id']}"))["revoked_unix_s"] == revoked["revoked_unix_s"]
    status, message, _ = await acme.error("POST", f"/admin/v1/keys/{made['id']}/rotate", {"overlap": "1h"})
    assert (status, "revoked" in message) == (409, True)


@pytest.mark.parametrize("lifetime", [{"expires": "90d"}, {"expires_in_s": 90 * 86400}])
async def test_a_key_expires(acme: AdminGateway, lifetime: dict[str, Any]) -> None:
    made = await acme.ok("POST", "/admin/v1/keys", {"tenant": "acme", **lifetime})

    assert made["expires_unix_s"] - made["created_unix_s"] == 90 * 86400
    acme.clock.advance(90 * 86400 - 1)
    assert await acme.opens(made["secret"])
    acme.clock.advance(1)
    assert not await acme.opens(made["secret"])
    assert (await acme.ok("GET", "/admin/v1/keys"))["data"][0]["state"] == "expired"


@pytest.mark.parametrize("overlap", [{"overlap": "24h"}, {"overlap_s": 86400}])
async def test_both_keys_work_for_the_overlap(acme: AdminGateway, overlap: dict[str, Any]) -> None:
    old = await acme.ok("POST", "/admin/v1/keys", {"tenant": "acme", "name": "laptop"})
    response = await acme.ask("POST", f"/admin/v1/keys/{old['id']}/rotate", overlap)
    new = response.json()

    assert (response.status_code, response.headers["cache-control"]) == (201, "no-store")
    assert (new["tenant"], new["name"], new["id"] != old["id"]) == ("acme", "laptop", True)
    assert [await acme.opens(key["secret"]) for key in (old, new)] == [True, True]
    acme.clock.advance(86400)
    assert [await acme.opens(key["secret"]) for key in (old, new)] == [False, True]


async def test_a_rotation_without_overlap_ends_the_old_key_at_once(acme: AdminGateway) -> None:
    old = await acme.ok("POST", "/admin/v1/keys", {"tenant": "acme"})
    new = await acme.ok("POST", f"/admin/v1/keys/{old['id']}/rotate", {"overlap_s": 0})

    assert [await acme.opens(key["secret"]) for key in (old, new)] == [False, True]


WRONG: dict[str, tuple[str, Any, str | None]] = {
    "no tenant": ("", {}, "tenant"),
    "no text": ("", {"tenant": 5}, "tenant"),
    "an unknown field": ("", {"tenant": "acme", "expires_in": 5}, "expires_in"),
    "a duration that is none": ("", {"tenant": "acme", "expires": "soon"}, "expires"),
    "a negative one": ("", {"tenant": "acme", "expires_in_s": -1}, "expires_in_s"),
    "no lifetime at all": ("", {"tenant": "acme", "expires_in_s": 0}, "expires_in_s"),
    "no lifetime, as text": ("", {"tenant": "acme", "expires": "0d"}, "expires"),
    "more than a century": ("", {"tenant": "acme", "expires_in_s": 10**18}, "expires_in_s"),
    "true is no number": ("", {"tenant": "acme", "expires_in_s": True}, "expires_in_s"),
    "both": ("", {"tenant": "acme", "expires": "1d", "expires_in_s": 5}, None),
    "a name too long": ("", {"tenant": "acme", "name": "n" * 65}, "name"),
    "a name with a line end": ("", {"tenant": "acme", "name": "a\nb"}, "name"),
    "no overlap": ("/{id}/rotate", {}, None),
    "two overlaps": ("/{id}/rotate", {"overlap": "1h", "overlap_s": 1}, None),
    "an overlap that is none": ("/{id}/rotate", {"overlap": "1 hour"}, "overlap"),
}


@pytest.mark.parametrize(("path", "body", "param"), WRONG.values(), ids=WRONG.keys())
async def test_a_mistake_is_a_400_with_its_path_and_makes_no_key(
    one_admin: AdminGateway, path: str, body: Any, param: str | None
) -> None:
    await one_admin.ok("PUT", "/admin/v1/tenants", {"acme": {}})
    made = await one_admin.ok("POST", "/admin/v1/keys", {"tenant": "acme"})
    status, _, at = await one_admin.error("POST", "/admin/v1/keys" + path.format(id=made["id"]), body)

    assert (status, at) == (400, param)
    assert len((await one_admin.ok("GET", "/admin/v1/keys"))["data"]) == 1
    assert await one_admin.opens(made["secret"])


async def test_unknown_tenants_and_keys_are_404(acme: AdminGateway) -> None:
    assert (await acme.error("POST", "/admin/v1/keys", {"tenant": "nobody"}))[0] == 404
    assert (await acme.error("DELETE", "/admin/v1/keys/0123456789ab"))[0] == 404
    assert (await acme.error("POST", "/admin/v1/keys/0123456789ab/rotate", {"overlap_s": 0}))[0] == 404
