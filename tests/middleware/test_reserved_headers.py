"""Headers that would choose for another, and those that look like it."""

from __future__ import annotations

import httpx

from tests.conftest import KEY, StartGateway

REFUSED = [
    "x-k3gw-tenant", "X-K3GW-Anything", "x-tenant-id", "X-Tenant-ID", "x-cache-salt", "x-priority", "X-Vllm-Priority", "X-data-parallel-rank",
    "x-llm-d-inference-fairness-id", "x-gateway-inference-objective", "x-prefiller-host-port", "x-dynamo-routing-mode", "x-worker-instance-id",
]  # fmt: skip


PASSED = ["x-session-id", "x-request-id", "x-stainless-lang", "priority", "x-tenancy", "x-k3", "openai-organization"]


def test_a_reserved_header_is_refused_by_its_name(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    with httpx.Client(base_url=gateway.url) as client:
        answers = {name: client.get("/v1/models", headers={**gateway.headers, name: "7"}) for name in REFUSED}
        assert client.get("/v1/models", headers={REFUSED[0]: "7"}).status_code == 401, "it comes before the key"

    assert [name for name, answer in answers.items() if answer.status_code != 400] == []
    for name, answer in answers.items():
        assert f"`{name.lower()}` is not accepted" in answer.json()["error"]["message"]


def test_other_headers_pass(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    with httpx.Client(base_url=gateway.url) as client:
        assert [client.get("/v1/models", headers={**gateway.headers, name: "7"}).status_code for name in PASSED] == [200] * len(
            PASSED
        )


def test_they_are_ignored_where_a_setting_says_so(start_gateway: StartGateway) -> None:
    gateway = start_gateway(tenancy={"key": KEY, "reserved_fields": "ignore"})
    with httpx.Client(base_url=gateway.url) as client:
        statuses = {client.get("/v1/models", headers={**gateway.headers, name: "7"}).status_code for name in REFUSED}

    assert statuses == {200}
