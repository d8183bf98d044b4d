"""Several tenants on one gateway: none can see another, or change what becomes of another's requests."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from server.context import Tenant
from tests.conftest import KEY, LiveGateway, StartGateway

ADMIN = "admin-key-of-the-whole-house"
KEYS = {name: f"k3gw-the-key-of-{name}-0123456789" for name in ("acme", "bravo", "carol", "dora")}
MODELS = {"kimi-k3": {"aliases": ["default"]}, "acme-tuned": {"aliases": ["acme-alias"]}, "bravo-tuned": {}}
TENANTS = (
    Tenant("acme", models=frozenset({"kimi-k3", "acme-tuned"})),
    Tenant("bravo", models=frozenset({"kimi-k3", "bravo-tuned"})),
    Tenant("carol", cache_group="choir"),
    Tenant("dora", cache_group="choir"),
)
SCRIPT = [
    {"when": {"contains": "hold"}, "reply": [{"text": "a"}, "hang"]},
    {"when": {"contains": "break"}, "reply": [{"text": "a"}, "error"]},
    {"reply": [{"control": ["</think>", "<response>"]}, {"text": "yes"}, {"control": ["</response>", "</message>"]}, "stop"]},
]


class House:
    """A gateway with four tenants, and what each of them gets from it."""

    def __init__(self, gateway: LiveGateway) -> None:
        self.gateway = gateway
        for tenant in TENANTS:
            gateway.gateway.storage.keys.add(KEYS[tenant.name], tenant)
        self.http = httpx.Client(base_url=gateway.url, timeout=30)

    def ask(
        self, tenant: str, path: str, method: str = "GET", headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        return self.http.request(method, path, headers={"authorization": f"Bearer {KEYS[tenant]}", **(headers or {})}, **more)

    def chat(self, tenant: str, text: str = "hi", headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        body = {"model": "kimi-k3", "messages": [{"role": "user", "content": text}], **fields}
        return self.ask(tenant, "/v1/chat/completions", "POST", headers, json=body)

    def recorded(self, key: str = ADMIN) -> dict[str, Any]:
        answer: dict[str, Any] = self.http.get("/debug/engine", headers={"authorization": f"Bearer {key}"}).json()
        return answer

    def of(self, tenant: str) -> list[dict[str, Any]]:
        """The engine's requests of a tenant, as the operator sees them."""
        return [entry for entry in self.recorded()["requests"] if entry["hints"]["tenant"] == tenant]

    def words_of_others(self, tenant: str) -> set[str]:
        """What `tenant` must never read."""
        others = [other for other in TENANTS if other.name != tenant]
        words = {other.name for other in others} | {KEYS[other.name] for other in others} | {ADMIN, "choir"}
        own = next(mine for mine in TENANTS if mine.name == tenant)
        words |= {name for name in MODELS if not own.may_use(name)}
        words |= {entry["cache_salt"] for other in others if other.cache_group is None for entry in self.of(other.name)}
        return words

    def shows_nothing_of_others(self, tenant: str, response: httpx.Response) -> None:
        seen = f"{response.status_code} {dict(response.headers)} {response.text}".lower()
        assert [word for word in self.words_of_others(tenant) if word.lower() in seen] == []


@pytest.fixture
def house(start_gateway: StartGateway) -> Iterator[House]:
    house = House(
        start_gateway(
            SCRIPT,
            context_length=4000,
            models=MODELS,
            tenancy={"key": KEY, "admin_key": ADMIN},
            metrics={"access": "key"},
            http={"max_body_bytes": 20_000},
        )
    )
    yield house
    house.http.close()


PROMPT = "the same long prompt for everybody, " * 20


@pytest.mark.parametrize("stream", [False, True])
def test_a_prefix_is_found_again_by_its_own_cache_group_only(house: House, stream: bool) -> None:
    def cached(tenant: str) -> int:
        assert house.chat(tenant, PROMPT, stream=stream).status_code == 200
        return int(house.of(tenant)[-1]["num_cached_tokens"])

    assert cached("acme") == 0
    assert cached("acme") > 0
    assert cached("bravo") == 0, "it learns that somebody else has sent this"
    assert cached("carol") == 0
    assert cached("dora") > 0, "both have asked to share"
    salts = {tenant: {entry["cache_salt"] for entry in house.of(tenant)} for tenant in KEYS}
    assert all(len(of) == 1 and "" not in of for of in salts.values())
    assert len(set.union(*salts.values())) == 3


RESERVED_FIELDS = {"cache_salt": "x", "priority": -5, "kv_transfer_params": {"do_remote_prefill": True}}


@pytest.mark.parametrize("name", RESERVED_FIELDS)
def test_what_only_the_gateway_decides_is_refused_in_a_body(house: House, name: str) -> None:
    for fields in ({name: RESERVED_FIELDS[name]}, {name: None}, {"extra_body": {name: RESERVED_FIELDS[name]}}):
        response = house.chat("acme", **fields)
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)
    assert house.of("acme") == []


@pytest.mark.parametrize("header", ["x-tenant-id", "x-cache-salt", "x-priority", "x-k3gw-tenant", "x-data-parallel-rank"])
def test_what_only_the_gateway_decides_is_refused_in_a_header(house: House, header: str) -> None:
    response = house.chat("acme", headers={header: "bravo"})

    assert response.status_code == 400
    assert f"`{header}`" in response.json()["error"]["message"]
    house.shows_nothing_of_others("acme", response)
    assert house.of("acme") == house.of("bravo") == []


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_a_client_names_makes_it_another_tenant(house: House, stream: bool) -> None:
    named = {
        "user": "bravo",
        "metadata": {"tenant": "bravo"},
        "safety_identifier": "bravo",
        "prompt_cache_key": "bravo",
        "service_tier": "priority",
    }
    headers = {"x-session-id": "bravo", "x-request-id": "bravo", "openai-organization": "bravo", "x-forwarded-for": "bravo"}
    assert house.chat("acme", PROMPT, headers, stream=stream, **named).status_code == 200
    assert house.chat("bravo", PROMPT, stream=stream).status_code == 200

    (acme,), (bravo,) = house.of("acme"), house.of("bravo")
    assert acme["cache_salt"] != bravo["cache_salt"]
    assert (acme["priority"], bravo["num_cached_tokens"]) == (bravo["priority"], 0)


@pytest.mark.parametrize("stream", [False, True])
def test_one_request_id_of_two_tenants_at_once_is_two_requests(house: House, stream: bool, until: Any) -> None:
    def hold(tenant: str) -> socket.socket:
        """A connection that waits for an answer which does not end."""
        content = json.dumps({"model": "kimi-k3", "messages": [{"role": "user", "content": "hold"}], "stream": stream})
        head = f"authorization: Bearer {KEYS[tenant]}\r\nx-request-id: the-same\r\ncontent-length: {len(content)}"
        connection = socket.create_connection(("127.0.0.1", house.http.base_url.port or 0), timeout=20)
        connection.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n{content}".encode())
        until(lambda: [1] == [entry["num_generated_tokens"] for entry in house.of(tenant)])
        return connection

    with hold("acme"):
        hold("carol").close()
        until(lambda: [entry["end"] for entry in house.of("carol")] == ["closed"])
        answer = house.chat("bravo", headers={"x-request-id": "the-same"}, stream=stream)

        assert (answer.status_code, '"stop"' in answer.text, answer.headers["x-request-id"]) == (200, True, "the-same")
        assert [entry["end"] for entry in house.of("acme")] == [None], "somebody else has ended it"
        assert len({entry["request_id"] for entry in house.recorded()["requests"]}) == 3
        assert len(house.recorded()["aborts"]) == 1
        assert house.recorded(KEYS["acme"])["aborts"] == house.recorded(KEYS["bravo"])["aborts"] == []
    until(lambda: [entry["end"] for entry in house.of("acme")] == ["closed"])


def test_each_sees_its_own_models(house: House) -> None:
    def listed(tenant: str) -> list[str]:
        return [model["id"] for model in house.ask(tenant, "/v1/models").json()["data"]]

    assert {tenant: listed(tenant) for tenant in KEYS} == {
        "acme": ["kimi-k3", "acme-tuned"],
        "bravo": ["kimi-k3", "bravo-tuned"],
        "carol": list(MODELS),
        "dora": list(MODELS),
    }
    statuses = {name: house.ask("bravo", f"/v1/models/{name}").status_code for name in ("kimi-k3", "default", "bravo-tuned")}
    assert set(statuses.values()) == {200}
    for name in ("acme-tuned", "acme-alias"):
        refused = [house.ask("bravo", f"/v1/models/{name}"), house.chat("bravo", model=name)]
        assert [response.status_code for response in refused] == [403, 403]
        assert all("kimi-k3" in response.text and "bravo-tuned" in response.text for response in refused)
    assert house.of("bravo") == []


ASKED = {
    "an answer": {},
    "a stream": {"stream": True, "stream_options": {"include_usage": True}},
    "an unknown model": {"model": "gpt-4"},
    "a wrong value": {"temperature": "hot"},
    "a prompt too long": {"messages": [{"role": "user", "content": "x" * 9000}]},
    "a body too large": {"user": "u" * 21_000},
    "an engine's error": {"messages": [{"role": "user", "content": "break"}]},
    "an engine's error in a stream": {"messages": [{"role": "user", "content": "break"}], "stream": True},
    "a reserved field": {"cache_salt": "x"},
    "tools that are none": {"tools": [{"type": "function"}]},
}
PATHS = (
    "/v1/models", "/v1/models/nothing", "/v1/nothing", "/nothing", "/metrics", "/debug/engine", "/health", "/ready", "/admin/v1/tenants",
    "/admin/v1/keys", "/admin/v1/usage?tenant=x", "/admin/v1/status", "/v1/chat/completions",
)  # fmt: skip


@pytest.mark.parametrize("tenant", ["acme", "bravo"])
def test_no_answer_names_another_tenant_or_what_is_its_own(house: House, tenant: str) -> None:
    for other in KEYS:
        house.chat(other, PROMPT)
    for fields in ASKED.values():
        house.shows_nothing_of_others(tenant, house.chat(tenant, **fields))
    for path, method in itertools.product(PATHS, ("GET", "POST", "PUT", "DELETE", "HEAD")):
        house.shows_nothing_of_others(tenant, house.ask(tenant, path, method))


def test_each_sees_its_own_requests_at_the_engine(house: House) -> None:
    for tenant in KEYS:
        house.chat(tenant, f"a secret of {tenant}")

    for tenant in KEYS:
        assert [entry["hints"]["tenant"] for entry in house.recorded(KEYS[tenant])["requests"]] == [tenant]
        assert f"a secret of {tenant}" in json.dumps(house.recorded(KEYS[tenant]))
        assert not any(f"a secret of {other}" in json.dumps(house.recorded(KEYS[tenant])) for other in KEYS if other != tenant)
    assert len(house.recorded()["requests"]) == len(KEYS)


def test_figures_of_all_are_for_operators(house: House) -> None:
    for tenant in KEYS:
        house.chat(tenant)
        assert house.ask(tenant, "/metrics").status_code == 401
    shown = house.http.get("/metrics", headers={"authorization": f"Bearer {ADMIN}"})

    assert all(f'tenant="{tenant}"' in shown.text for tenant in KEYS)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/v1/models/kimi-k3"])
def test_the_operators_key_is_no_tenant(house: House, path: str) -> None:
    assert house.http.get(path, headers={"authorization": f"Bearer {ADMIN}"}).status_code == 401


@pytest.mark.parametrize(("first", "second"), [("acme", "bravo"), ("bravo", "acme")])
def test_two_keys_at_once_are_nobody(house: House, first: str, second: str) -> None:
    headers = {"authorization": f"Bearer {KEYS[first]}", "x-api-key": KEYS[second]}

    assert house.http.get("/v1/models", headers=headers).status_code == 401


def test_usage_counts_are_ones_own(house: House) -> None:
    def usage(tenant: str) -> dict[str, Any]:
        answer: dict[str, Any] = house.chat(tenant, PROMPT).json()["usage"]
        return answer

    alone = usage("acme")
    for tenant in ("carol", "dora", "carol"):
        usage(tenant)

    assert usage("bravo") == alone, "what others have asked is in the figures of this one"
