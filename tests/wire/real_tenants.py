"""Tenants of the gateway with real vLLM, and what the gateway, its ledger and the engine say of them."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import yaml

ADMIN_KEY = "k3gw-wire-admin-0123456789"
DATABASE = "gateway.db"
PRICE = {"input": 3, "cached_input": 0.3, "output": 15}
"""US dollars per million tokens; in nano-dollars a token it is a thousand times as much."""
TENANTS: dict[str, Any] = {"ann": {}, "bea": {}, "cid": {"cache_group": "choir"}, "dot": {"cache_group": "choir"}, "choir": {}}
STREAM: Any = {"stream": True, "stream_options": {"include_usage": True}}
SETTLED_S = 15.0


def write_config(folder: Path) -> Path:
    """The configuration of a gateway with these tenants, which keeps all it writes in `folder`."""
    path = folder / "gateway.yaml"
    model = {"aliases": ["moonshotai/Kimi-K3", "default"], "price_per_million_tokens_usd": PRICE}
    storage = {"ledger_url": f"sqlite:///{folder / DATABASE}", "spool_path": str(folder / "spool")}
    settings = {"models": {"kimi-k3": model}, "tenants": TENANTS, "tenancy": {"admin_key": ADMIN_KEY}, "storage": storage}
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def usage_of(answer: httpx.Response) -> dict[str, Any]:
    """What a whole answer, or a stream with `STREAM`, says was used."""
    text = answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        *_, text, done, end = text.split("\n\n")
        assert ("data: [DONE]", "") == (done, end)
    usage: dict[str, Any] = json.loads(text.removeprefix("data: "))["usage"]
    return usage


def price_of(row: dict[str, Any]) -> int:
    """What a ledger row's tokens cost, in nano-dollars."""
    num_uncached = row["input_tokens"] - row["cached_tokens"]
    return num_uncached * 3000 + row["cached_tokens"] * 300 + row["output_tokens"] * 15000


@dataclass(frozen=True)
class Counts:
    """vLLM's own totals, from its own metrics."""

    prompt_tokens: int
    cached_tokens: int
    queried_tokens: int
    hit_tokens: int
    generated_tokens: int

    def since(self, before: Counts) -> Counts:
        return Counts(*(getattr(self, name) - getattr(before, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Scrape:
    """What `/metrics` says."""

    text: str

    def sum(self, name: str, labels: str = "") -> float:
        """Over a metric's samples whose labels have `labels`."""
        samples = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", self.text, re.MULTILINE)
        assert samples or name.startswith("k3gw_"), f"vLLM has no metric `{name}`"
        return sum(float(value) for found, value in samples if labels in found)

    def counts(self) -> Counts:
        """vLLM's totals."""
        names = ("prompt_tokens", "prompt_tokens_cached", "prefix_cache_queries", "prefix_cache_hits", "generation_tokens")
        return Counts(*(round(self.sum(f"vllm:{name}_total")) for name in names))


@dataclass(frozen=True)
class RealTenants:
    """Of the session's one gateway, `target`, whose store is in `folder`."""

    target: Any
    folder: Path
    http: httpx.Client

    def named(self, tenant: str) -> Any:
        """`target` with a new key of a tenant."""
        answer = self.http.post(f"{self.target.url}/admin/v1/keys", json={"tenant": tenant}, headers=self.admin)
        assert 201 == answer.status_code, answer.text
        return replace(self.target, key=answer.json()["secret"])

    def put(self, tenant: str, **settings: Any) -> None:
        """Create or change a tenant."""
        answer = self.http.put(f"{self.target.url}/admin/v1/tenants/{tenant}", json=settings, headers=self.admin)
        assert 200 == answer.status_code, answer.text

    @property
    def admin(self) -> dict[str, str]:
        return {"authorization": f"Bearer {ADMIN_KEY}"}

    def scrape(self) -> Scrape:
        """All metrics as they are now."""
        return Scrape(self.http.get(f"{self.target.url}/metrics").text)

    def counts(self) -> Counts:
        """vLLM's totals, once it is at rest."""
        end_s = time.monotonic() + SETTLED_S
        before = None
        while True:
            scrape = self.scrape()
            now = scrape.counts()
            if now == before and not scrape.sum("vllm:num_requests_running") + scrape.sum("k3gw_inflight_requests"):
                return now
            assert time.monotonic() < end_s, f"not at rest after {SETTLED_S} s"
            before = now
            time.sleep(0.05)

    def row(self, tenant: str, request_id: str) -> dict[str, Any]:
        """The ledger's row of one request, once it is there."""
        (row,) = self._rows(1, "tenant = ? AND request_id = ?", (tenant, request_id))
        return row

    def rows(self, tenant: str, num_rows: int) -> list[dict[str, Any]]:
        """All ledger rows of a tenant, once there are `num_rows`, in the order in which the requests ended."""
        return self._rows(num_rows, "tenant = ?", (tenant,))

    def _rows(self, num_rows: int, where: str, values: tuple[str, ...]) -> list[dict[str, Any]]:
        end_s = time.monotonic() + SETTLED_S
        while True:
            connection = sqlite3.connect(f"file:{self.folder / DATABASE}?mode=ro", uri=True)
            try:
                connection.row_factory = sqlite3.Row
                found = connection.execute(f"SELECT * FROM ledger WHERE {where} ORDER BY ended_unix_ms, rowid", values)
                rows = [dict(row) for row in found]
            finally:
                connection.close()
            if len(rows) >= num_rows or time.monotonic() > end_s:
                assert num_rows == len(rows), rows
                return rows
            time.sleep(0.05)
