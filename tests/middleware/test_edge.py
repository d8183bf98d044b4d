"""Request ids, error rendering, body limits, as a client sees them."""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message, Receive, Scope, Send

from server.clock import ManualClock
from server.context import Tenant
from server.errors import OverloadedError
from server.middleware.edge import EdgeMiddleware
from server.record import GenerationRecord
from server.serving import server_config
from tests.conftest import KEY, LiveGateway, StartGateway

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
    gateway.gateway.draining = True
    response = httpx.post(f"{gateway.url}/v1/chat/completions", json=BODY, headers=gateway.headers)

    assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")


def test_the_address_of_a_client_is_never_taken_from_a_header(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    config = server_config(start_gateway().app)
    config.load()

    assert config.loaded_app is config.app, "wrapped by uvicorn"
    assert config.ws_protocol_class is None


KEYS = {
    "an empty bearer before": ([("authorization", "Bearer "), ("x-api-key", KEY)], 200),
    "an empty bearer behind": ([("x-api-key", KEY), ("authorization", "Bearer ")], 200),
    "another scheme": ([("authorization", "Basic eA=="), ("x-api-key", KEY)], 200),
    "an empty api key": ([("x-api-key", ""), ("authorization", f"Bearer {KEY}")], 200),
    "the same twice": ([("authorization", f"Bearer {KEY}"), ("x-api-key", KEY)], 200),
    "two of which one is wrong": ([("authorization", f"Bearer {KEY}"), ("x-api-key", "k" * 20)], 401),
    "two of which the other is wrong": ([("x-api-key", KEY), ("authorization", "Bearer " + "k" * 20)], 401),
    "none": ([("authorization", "Bearer "), ("x-api-key", " ")], 401),
}


@pytest.mark.parametrize(("headers", "status"), KEYS.values(), ids=KEYS.keys())
def test_which_key_counts(start_gateway: StartGateway, headers: list[tuple[str, str]], status: int) -> None:
    connection = HTTPConnection(start_gateway().url.removeprefix("http://"), timeout=20)  # httpx sends no empty ones
    connection.putrequest("GET", "/v1/models")
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders()
    with closing(connection):
        assert connection.getresponse().status == status


@pytest.mark.parametrize("path", ["/health", "/ready"])
@pytest.mark.parametrize("draining", [False, True])
def test_head_answers_as_get_without_the_body(start_gateway: StartGateway, path: str, draining: bool) -> None:
    gateway = start_gateway()
    gateway.gateway.draining = draining
    get, head = (httpx.request(method, gateway.url + path) for method in ("GET", "HEAD"))

    assert head.status_code == get.status_code == (503 if draining and path == "/ready" else 200)
    assert head.content == b""
    for name in ("content-type", "content-length", "retry-after"):
        assert head.headers.get(name) == get.headers.get(name)


class Refused:
    """Asks for what is refused, and reads how it was counted."""

    def __init__(self, gateway: LiveGateway) -> None:
        self._gateway = gateway

    def post(self, *, key: str = KEY, **fields: Any) -> int:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.post(f"{self._gateway.url}/v1/chat/completions", json={**BODY, **fields}, headers=headers).status_code

    @property
    def counted(self) -> set[tuple[str, str, str, str, float]]:
        text = httpx.get(f"{self._gateway.url}/metrics").text
        names = ("api", "tenant", "model", "outcome")
        return {
            (*(sample.labels[name] for name in names), sample.value)  # type: ignore[misc]
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "k3gw_requests_total"
        }


def test_what_is_refused_is_counted(start_gateway: StartGateway) -> None:
    gateway = start_gateway(context_length=200, http={"max_body_bytes": 2000})
    refused = Refused(gateway)

    assert refused.post(key="wrong") == 401
    assert refused.counted == {("chat", "", "", "unauthenticated", 1.0)}
    assert refused.post(temperature="hot") == 400
    assert refused.post(user="u" * 3000) == 413
    assert refused.post(model="nope") == 404
    assert refused.counted == {("chat", "", "", "unauthenticated", 1.0), ("chat", "default", "", "invalid", 3.0)}
    for stream in (False, True):
        assert refused.post(messages=[{"role": "user", "content": "x" * 500}], stream=stream) == 400
    assert httpx.get(f"{gateway.url}/nothing", headers=gateway.headers).status_code == 404
    assert httpx.delete(f"{gateway.url}/v1/models", headers=gateway.headers).status_code == 405
    assert ("chat", "default", "kimi-k3", "invalid", 2.0) in refused.counted
    assert ("", "default", "", "invalid", 2.0) in refused.counted
    gateway.gateway.draining = True
    assert refused.post() == 503
    assert httpx.get(f"{gateway.url}/ready").status_code == 503
    assert ("chat", "default", "", "rejected", 1.0) in refused.counted
    assert sum(count[-1] for count in refused.counted) == 9, "a probe is no request"


def test_a_fault_before_the_generation_is_counted(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    gateway.gateway.generator().prepare = None  # type: ignore[assignment, method-assign]
    refused = Refused(gateway)

    assert refused.post() == 500
    assert refused.counted == {("chat", "default", "kimi-k3", "error", 1.0)}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reply", [["error"], [{"text": "x"}, "error"], [{"text": "x"}, "stop"]])
def test_what_came_to_a_generation_is_counted_once(start_gateway: StartGateway, reply: list[Any], stream: bool) -> None:
    refused = Refused(start_gateway([{"reply": reply}]))
    refused.post(stream=stream)

    assert refused.counted == {("chat", "default", "kimi-k3", "error" if "error" in reply else "finished", 1.0)}


def test_an_open_gateway_needs_no_key(start_gateway: StartGateway) -> None:
    gateway = start_gateway(tenancy={"auth": "off"})

    assert httpx.get(f"{gateway.url}/v1/models").json()["data"][0]["id"] == "kimi-k3"


def test_a_compressed_body_is_told_so(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    headers = {**gateway.headers, "content-encoding": "gzip"}
    response = httpx.post(f"{gateway.url}/v1/chat/completions", content=gzip.compress(json.dumps(BODY).encode()), headers=headers)

    assert response.status_code == 400
    assert "content-encoding" in response.json()["error"]["message"]


async def test_a_request_that_the_server_gives_up_is_counted() -> None:
    refused: list[GenerationRecord] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["tenant"] = Tenant("acme")
        await asyncio.Event().wait()

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    edge = EdgeMiddleware(app, clock=ManualClock(), on_refused=refused.append)
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    task = asyncio.ensure_future(edge(scope, receive, send))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert [("acme", "chat", "cancelled")] == [(record.tenant, record.api, record.outcome) for record in refused]


async def test_a_head_that_was_given_up_is_none() -> None:
    """A keep-alive comment waits for its client to read what came before, and the answer fails meanwhile."""
    sent: list[Message] = []
    may_send = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["headers"]["x-kept"] = "yes"
        comment = asyncio.ensure_future(send({"type": "http.response.start", "status": 200, "headers": []}))
        await asyncio.sleep(0)
        comment.cancel()
        await asyncio.wait([comment])
        may_send.set()
        raise OverloadedError("too much")

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        await may_send.wait()
        sent.append(message)

    edge = EdgeMiddleware(app, clock=ManualClock(), on_refused=lambda record: None)
    await edge({"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}, receive, send)

    assert [503, None] == [message.get("status") for message in sent]
    assert (b"x-kept", b"yes") in sent[0]["headers"]
