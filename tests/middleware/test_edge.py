"""Request ids, error rendering, body limits, as a client sees them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.conftest import StartGateway

BODY: dict[str, Any] = {"model": "kimi-k3", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("sent", ["abc-123", "A.b_c", "x" * 64])
def test_a_sane_request_id_is_kept(start_gateway: StartGateway, sent: str) -> None:
    response = httpx.get(start_gateway().url + "/health", headers={"x-request-id": sent})

    assert response.headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["", "x" * 65, "a b", "a/b", "é".encode()])
def test_any_other_is_replaced(start_gateway: StartGateway, sent: str | bytes) -> None:
    response = httpx.get(start_gateway().url + "/health", headers={"x-request-id": sent})

    assert len(response.headers["x-request-id"]) == 32


def test_errors_carry_the_request_id_too(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    for path, headers in (("/v1/models", {}), ("/nothing", gateway.headers), ("/v1/models/nope", gateway.headers)):
        assert httpx.get(gateway.url + path, headers={**headers, "x-request-id": "mine"}).headers["x-request-id"] == "mine"


def test_the_same_request_id_twice_at_once_is_no_conflict(start_gateway: StartGateway) -> None:
    gateway = start_gateway(
        [{"reply": [{"text": "a"}, {"control": ["</response>", "</message>"]}, "stop"], "step_interval_ms": 5}]
    )
    body = {**BODY, "thinking": {"type": "disabled"}, "stream": True}
    headers = {**gateway.headers, "x-request-id": "mine"}
    with (
        httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=body, headers=headers) as first,
        httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=body, headers=headers) as second,
    ):
        answers = [list(first.iter_lines()), list(second.iter_lines())]

    assert all(lines[-2] == "data: [DONE]" for lines in answers)
    assert answers[0][0] != answers[1][0], "two completions have one id"


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_limit_is_413(start_gateway: StartGateway, announced: bool) -> None:
    gateway = start_gateway(http={"max_body_bytes": 2000})
    data = json.dumps({**BODY, "user": "u" * 3000}).encode()
    content = data if announced else iter([data[:1000], data[1000:]])
    response = httpx.post(f"{gateway.url}/v1/chat/completions", content=content, headers=gateway.headers)

    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"
    assert httpx.post(f"{gateway.url}/v1/chat/completions", json=BODY, headers=gateway.headers).status_code == 200


def test_a_wrong_method_says_the_right_one(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    response = httpx.get(f"{gateway.url}/v1/chat/completions", headers=gateway.headers)

    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert response.json()["error"]["code"] == "method_not_allowed"


def test_not_ready_until_the_engine_is_up_and_after_it_died(start_gateway: StartGateway) -> None:
    gateway = start_gateway([{"reply": ["die"]}])
    assert httpx.get(f"{gateway.url}/ready").json() == {"status": "ready"}

    died = httpx.post(f"{gateway.url}/v1/chat/completions", json=BODY, headers=gateway.headers)
    ready = httpx.get(f"{gateway.url}/ready")
    after = httpx.post(f"{gateway.url}/v1/chat/completions", json=BODY, headers=gateway.headers)

    assert [response.status_code for response in (died, ready, after)] == [503, 503, 503]
    assert int(ready.headers["retry-after"]) > 0
    assert after.json()["error"]["code"] == "engine_dead"
    assert httpx.get(f"{gateway.url}/health").status_code == 200


def test_draining_refuses_new_work(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    gateway.gateway.drain()
    response = httpx.post(f"{gateway.url}/v1/chat/completions", json=BODY, headers=gateway.headers)

    assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")


def test_metrics_need_a_key_where_the_setting_says_so(start_gateway: StartGateway) -> None:
    gateway = start_gateway(metrics={"access": "key"})

    assert httpx.get(f"{gateway.url}/metrics").status_code == 401
    assert "k3gw_engine_up 1.0" in httpx.get(f"{gateway.url}/metrics", headers=gateway.headers).text


def test_an_open_gateway_needs_no_key(start_gateway: StartGateway) -> None:
    gateway = start_gateway(tenancy={"auth": "off"})

    assert httpx.get(f"{gateway.url}/v1/models").json()["data"][0]["id"] == "kimi-k3"
