"""A gateway of the tests' own that has several workers, and ways to ask it that any of them may get."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.services.gateway import ADMIN_KEY, ROOT, GatewayProcess
from tests.services.redis import RedisServer
from tests.wire.customers import END, Customer, wait_for

KEY = "k3gw-workers-key-0123456789"
SCRIPT = [
    {"when": {"contains": "hold"}, "reply": [{"text": "Hello"}, "hang"]},
    {"when": {"contains": "wait"}, "reply": [{"text": "Hello"}, {"wait_ms": 4000}, {"text": "!"}, *END]},
    {"reply": [{"text": "yes"}, *END]},
]
PATIENT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from server.admission.redis_store import RedisStore
RedisStore.__init__.__kwdefaults__.update(deadline_s=10.0, lease_s=25.0, renew_s=8.0)
if __name__ == "__main__":
    from server.cli import main
    main()
"""
"""The command, which waits long for Redis, as the machine may be busy; each worker imports it, too."""

TENANTS = {
    "default": {"limits": {"requests_per_minute": 10**6, "concurrent_requests": 10**4}},
    "hammered": {"limits": {"requests_per_minute": 100}},
    "crowded": {"limits": {"concurrent_requests": 5}},
    "broke": {"budget": {"tokens_per_day": 4000}},
    "leaver": {},
    "held": {},
}


class Workers(GatewayProcess):
    """A gateway with so many workers. Customers of it say who asks; their client is closed, as each request has its connection."""

    def __init__(self, folder: Path, redis: RedisServer, count: int = 2, *, drain_timeout_s: int = 30, **tenancy: Any) -> None:
        redis.client.flushall()
        storage = {"ledger_url": f"sqlite:///{folder}/gateway.db", "spool_path": f"{folder}/spool", "limits_away": "closed"}
        super().__init__(
            folder,
            SCRIPT,
            http={"port": 0, "workers": count, "drain_timeout_s": drain_timeout_s},
            storage={**storage, "limits_url": redis.url},
            tenancy={"admin_key": ADMIN_KEY, **(tenancy or {"key": KEY})},
            tenants=TENANTS,
        )
        self._command[1:3] = [str(folder / "main.py")]
        (folder / "main.py").write_text(PATIENT)
        self.count = count
        self.ledger = f"{folder}/gateway.db"
        self.headers = {"authorization": f"Bearer {KEY}"}

    @property
    def processes(self) -> list[psutil.Process]:
        """The workers', in their order."""
        assert self._process is not None
        children = psutil.Process(self._process.pid).children()
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]

    def get(self, path: str, **headers: str) -> httpx.Response:
        """By a connection of its own, which any worker may get."""
        return httpx.get(f"{self.url}{path}", headers=headers or self.admin, timeout=30)

    def customer(self, tenant: str) -> Customer:
        with httpx.Client() as http:
            customer = Customer(http, self.url, tenant, self.key_of(http, tenant))
        wait_for(lambda: {200} == {self.get("/v1/models", **customer.headers).status_code for _ in range(8)})
        return customer

    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        families = text_string_to_metric_families(self.get("/metrics").text)
        found = [sample for family in families for sample in family.samples]
        values = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in found}
        assert len(found) == len(values), "a series is told twice"
        return values

    def sum(self, name: str, **labels: str) -> float:
        wanted = labels.items()
        return sum(value for (found, of), value in self.samples().items() if found == name and wanted <= dict(of).items())

    def wait_code(self) -> int:
        assert self._process is not None
        return self._process.wait(30)


async def ask(customer: Customer, text: str = "hi", **fields: Any) -> httpx.Response:
    """Over a connection of its own."""
    async with httpx.AsyncClient(timeout=60) as client:
        url = f"{customer.url}/v1/chat/completions"
        return await client.post(url, json=customer.body(text, **fields), headers=customer.headers)


async def ask_many(customer: Customer, count: int, text: str = "hi") -> Counter[int]:
    """So many at once, half of them streamed; how many had which status, or 429 where a stream was ended by that."""
    answers = await asyncio.gather(*(ask(customer, text, stream=number % 2 == 0) for number in range(count)))
    return Counter(429 if '"code":"insufficient_quota"' in answer.text else answer.status_code for answer in answers)


def by_worker(gateway: Workers, customer: Customer) -> set[tuple[str, ...]]:
    """The requests that each worker's engine was asked for this tenant, as far as one finds them in some tries."""
    found = set()
    for _ in range(40):
        requests = gateway.get("/debug/engine", **customer.headers).json()["requests"]
        found.add(tuple(request["request_id"].split(":")[1] for request in requests))
    return found
