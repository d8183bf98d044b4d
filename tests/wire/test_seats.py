"""More requests than seats on real vLLM: they wait in the gateway's queue, and vLLM's own stays empty."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.wire.real_tenants import RealTenants, Scrape

Until = Any
pytestmark = pytest.mark.vllm

NUM_SEATS, NUM_RESERVED = 32, 2
"""Of the CPU profile; a sixteenth is kept for those who hold few."""


async def flood(tenants: RealTenants, nums: dict[str, int], num_tokens: int) -> tuple[list[httpx.Response], list[Scrape]]:
    """So many requests of each tenant at once: the answers, and what `/metrics` said meanwhile."""
    targets = {name: tenants.named(name) for name in nums}
    scrapes: list[Scrape] = []

    async def ask(http: httpx.AsyncClient, name: str, number: int) -> httpx.Response:
        target = targets[name]
        body = target.body(f"Say {number} for {name}.", max_tokens=num_tokens, ignore_eos=True)
        return await http.post(f"{target.base_url}/chat/completions", json=body, headers=target.headers)

    async def look(http: httpx.AsyncClient) -> None:
        while True:
            scrapes.append(Scrape((await http.get(f"{tenants.target.url}/metrics")).text))
            await asyncio.sleep(0.02)

    limits = httpx.Limits(max_connections=sum(nums.values()) + 1)
    async with httpx.AsyncClient(timeout=180, limits=limits) as http, asyncio.TaskGroup() as group:
        looking = group.create_task(look(http))
        asked = [group.create_task(ask(http, name, number)) for name, num in nums.items() for number in range(num)]
        answers = list(await asyncio.gather(*asked))
        looking.cancel()
    return answers, scrapes


async def test_who_finds_no_seat_waits_with_us_and_not_in_the_engine(tenants: RealTenants) -> None:
    num_tokens = 12
    answers, scrapes = await flood(tenants, {"ann": 70, "bea": 20}, num_tokens)

    assert [200] * 90 == [answer.status_code for answer in answers]
    assert [num_tokens] * 90 == [answer.json()["usage"]["completion_tokens"] for answer in answers]
    full = [scrape for scrape in scrapes if scrape.sum("k3gw_queued_requests") > 0]
    assert len(full) > 5, "nothing has waited, or nobody has looked"
    assert max(scrape.sum("k3gw_queued_requests") for scrape in full) > 50
    running = [scrape.sum("vllm:num_requests_running") for scrape in full]
    assert NUM_SEATS - NUM_RESERVED <= max(running) <= NUM_SEATS, running
    waiting = [scrape.sum("vllm:num_requests_waiting") for scrape in full]
    assert 0 == max(waiting), waiting
    assert 0 == tenants.scrape().sum("k3gw_queued_requests")
