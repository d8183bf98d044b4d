"""The ledger of real vLLM: what its rows say was used is what the engine counted, in every form of answer."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import Any

import httpx
import pytest

from tests.wire.real_tenants import STREAM, RealTenants, price_of, usage_of

Until = Any
pytestmark = pytest.mark.vllm

THINKS: Any = {"thinking": {"type": "enabled"}}
OBJECT = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
FORMS: dict[str, Any] = {
    "an answer": {},
    "an answer that is cut": {"max_tokens": 7},
    "an answer with reasoning": {"max_tokens": 120, **THINKS},
    "an answer that is sampled": {"temperature": 1.0, "seed": 5, "max_tokens": 60},
    "several choices": {"n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 40},
    "an answer as JSON": {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": OBJECT}}},
    "log probabilities": {"logprobs": True, "top_logprobs": 2, "max_tokens": 12},
}
ENTRY = '"logprob":'
"""In a chunk: of one token, where no alternatives were asked for."""
KINDS = ("input", "cached_input", "output")
NUM_OPEN_SEATS = 30
"""Of the 32 of the CPU profile; two are kept for tenants that hold few."""


@pytest.fixture
def tenant(tenants: RealTenants, request: pytest.FixtureRequest) -> str:
    """A new one, so that nothing of it is cached and its rows are this test's."""
    name = "t" + blake2b(request.node.name.encode(), digest_size=6).hexdigest()
    tenants.put(name)
    return name


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_a_row_has_the_engines_counts(tenants: RealTenants, tenant: str, form: dict[str, Any], stream: bool) -> None:
    target, num_choices = tenants.named(tenant), form.get("n", 1)
    question = "Tell me of a city that you know, of its river and of its bridges, as well as you can. " * 3
    for is_first in (True, False):
        before = tenants.counts()
        body = target.body(question, **{"max_tokens": 80, **form, **(STREAM if stream else {})})
        answer = tenants.http.post(f"{target.base_url}/chat/completions", json=body, headers=target.headers)
        assert 200 == answer.status_code, answer.text
        usage, counts = usage_of(answer), tenants.counts().since(before)
        row = tenants.row(tenant, answer.headers["x-request-id"])

        assert (counts.prompt_tokens, counts.generated_tokens) == (num_choices * row["input_tokens"], row["output_tokens"])
        assert is_first == (row["cached_tokens"] == 0)
        if num_choices == 1:
            assert counts.cached_tokens == row["cached_tokens"]
        told = (usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"])
        assert told == (row["output_tokens"], row["cached_tokens"])
        assert (price_of(row), "finished", "chat") == (row["cost_nano_usd"], row["outcome"], row["api"])
        assert ("thinking" in form) == (row["reasoning_tokens"] > 0)


def test_the_sums_of_many_at_once_are_the_engines(tenants: RealTenants, tenant: str) -> None:
    target, before = tenants.named(tenant), tenants.counts()

    async def ask(http: httpx.AsyncClient, number: int) -> None:
        body = target.body(f"Tell me of the number {number % 30}. " * 4, max_tokens=3 + number, **(STREAM if number % 2 else {}))
        answer = await http.post(f"{target.base_url}/chat/completions", json=body, headers=target.headers)
        assert 200 == answer.status_code, answer.text

    async def all_at_once() -> None:
        async with httpx.AsyncClient(timeout=120) as http, asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(ask(http, number))

    asyncio.run(all_at_once())
    rows, counts = tenants.rows(tenant, 50), tenants.counts().since(before)
    sums = [sum(row[name] for row in rows) for name in ("input_tokens", "cached_tokens", "output_tokens")]
    assert [counts.prompt_tokens, counts.cached_tokens, counts.generated_tokens] == sums
    scrape = tenants.scrape()
    told = [scrape.sum("k3gw_tokens_total", f'kind="{kind}",model="kimi-k3",tenant="{tenant}"') for kind in KINDS]
    assert told == sums
    report = tenants.http.get(f"{tenants.target.url}/admin/v1/usage?tenant={tenant}", headers=tenants.admin).json()
    (line,) = report["data"]
    assert (50, sum(price_of(row) for row in rows)) == (line["finished"], line["cost_nano_usd"])
    assert sums == [line[name] for name in ("input_tokens", "cached_tokens", "output_tokens")]


@pytest.mark.parametrize("n", [1, 2])
def test_who_leaves_a_stream_pays_for_what_was_made_until_then(tenants: RealTenants, tenant: str, n: int) -> None:
    target, before = tenants.named(tenant), tenants.counts()
    body = target.body("Say hello.", n=n, max_tokens=6000, ignore_eos=True, logprobs=True, **STREAM)
    received = ""
    with tenants.http.stream("POST", f"{target.base_url}/chat/completions", json=body, headers=target.headers) as answer:
        for text in answer.iter_text():
            received += text
            if received.count(ENTRY) >= 4:
                break
    row, counts = tenants.row(tenant, answer.headers["x-request-id"]), tenants.counts().since(before)

    assert 4 <= received.count(ENTRY) <= row["output_tokens"] <= counts.generated_tokens < 3000
    assert (n * row["input_tokens"], "cancelled", None) == (counts.prompt_tokens, row["outcome"], row["finish_reason"])
    assert price_of(row) == row["cost_nano_usd"] > 0


def test_who_leaves_before_the_engine_was_asked_pays_nothing(tenants: RealTenants, tenant: str, until: Until) -> None:
    """Its request waits for a seat, while others of its tenant hold all that are open to it."""
    target, before = tenants.named(tenant), tenants.counts()

    async def ask(http: httpx.AsyncClient, text: str) -> None:
        body = target.body(text, max_tokens=4000, ignore_eos=True, **STREAM)
        await http.post(f"{target.base_url}/chat/completions", json=body, headers=target.headers)

    async def wait_for(num: int, metric: str) -> None:
        await asyncio.to_thread(until, lambda: num == tenants.scrape().sum(metric))

    async def leave() -> None:
        limits = httpx.Limits(max_connections=NUM_OPEN_SEATS + 8)
        async with httpx.AsyncClient(timeout=120, limits=limits) as http, asyncio.TaskGroup() as group:
            seated = [group.create_task(ask(http, f"Say {number}.")) for number in range(NUM_OPEN_SEATS)]
            await wait_for(NUM_OPEN_SEATS, "vllm:num_requests_running")
            waiting = [group.create_task(ask(http, "Say all of it again.")) for _ in range(8)]
            await wait_for(8, "k3gw_queued_requests")
            for task in waiting:
                task.cancel()
            await wait_for(0, "k3gw_queued_requests")
            for task in seated:
                task.cancel()

    asyncio.run(leave())
    rows, counts = tenants.rows(tenant, NUM_OPEN_SEATS + 8), tenants.counts().since(before)
    waited = [row for row in rows if row["admitted_unix_ms"] is None]
    assert {"cancelled"} == {row["outcome"] for row in rows}
    assert [(0, 0, 0)] * 8 == [(row["input_tokens"], row["output_tokens"], row["cost_nano_usd"]) for row in waited]
    assert counts.queried_tokens == sum(row["input_tokens"] for row in rows)
    assert sum(row["output_tokens"] for row in rows) <= counts.generated_tokens
