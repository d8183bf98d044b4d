"""Fairness over HTTP: what is asked of a gateway that runs is answered, counted, and leaves no key behind."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from bench.fairness_http import RunningGateway
from server.context import Tenant
from tests.conftest import ADMIN_KEY, LiveGateway, StartGateway

FOREVER = [{"step_interval_ms": 1, "reply": [{"repeat": {"times": 10_000, "of": [{"text": "lorem "}]}}]}]
ONE, OTHER = Tenant("fairness-one"), Tenant("fairness-other", weight=3)


@pytest.fixture
def live(start_gateway: StartGateway) -> LiveGateway:
    return start_gateway(FOREVER, seats=4)


def keys(live: LiveGateway) -> list[str]:
    found = httpx.get(f"{live.url}/admin/v1/keys", headers=live.admin).json()["data"]
    return [key["state"] for key in found]


async def test_service_is_what_the_ledger_says_was_used(live: LiveGateway) -> None:
    async with RunningGateway(live.url, ADMIN_KEY, num_seats=4).open() as gateway:
        for tenant in (ONE, OTHER):
            await gateway.put(tenant)
        gateway.take_service()
        ttfts_s = await asyncio.gather(*(gateway.ask(tenant, 40, 7) for tenant in (ONE, OTHER, OTHER)))
        service = gateway.take_service()

        assert all(ttft_s > 0 for ttft_s in ttfts_s)
        rows = await asyncio.to_thread(live.ledger, 3)
        for tenant in (ONE, OTHER):
            own = [row for row in rows if row["tenant"] == tenant.name]
            assert [7] * len(own) == [row["output_tokens"] for row in own]
            used = sum(row["input_tokens"] - 0.9 * row["cached_tokens"] + 5 * row["output_tokens"] for row in own)
            assert used == pytest.approx(service[tenant.name])
        assert {ONE.name: 0.0, OTHER.name: 0.0} == gateway.take_service()
        assert [1, 2] == [gateway.charged[0][tenant.name]["requests"] for tenant in (ONE, OTHER)]
        assert ["active", "active"] == keys(live)
    assert ["revoked", "revoked"] == keys(live)


async def test_who_is_refused_asks_again(live: LiveGateway) -> None:
    async with RunningGateway(live.url, ADMIN_KEY, num_seats=4).open() as gateway:
        await gateway.put(ONE)
        settings = {"limits": {"concurrent_requests": 1}}
        async with httpx.AsyncClient(headers=live.admin) as http:
            await http.put(f"{live.url}/admin/v1/tenants/{ONE.name}", json=settings)
        await asyncio.gather(*(gateway.ask(ONE, 40, 500) for _ in range(2)))

        assert gateway.num_refused >= 1
        rows = await asyncio.to_thread(live.ledger, 2 + gateway.num_refused)
    assert [500, 500] == [row["output_tokens"] for row in rows if row["outcome"] == "finished"]
