"""Two replicas at work for a handful of tenants: all that can be counted happens, in each of two rounds.

A counter's growth is seen from its second scrape on: between the rounds Prometheus looks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.services.images import data_url, encoded
from tests.services.prometheus import Prometheus, prometheus
from tests.wire.customers import END, Customer, House, ledger_rows, open_house, wait_for

METRICS_KEY = "the-key-of-the-scraper-0123"
NUM_SEATS = 4
CACHED, DRAFT, ACCEPTED = 16, 7, 3
TOKENS_PER_STEP = 1 + ACCEPTED
SPECULATES: Any = {"cached_tokens": CACHED, "tokens_per_step": TOKENS_PER_STEP, "spec": {"draft": DRAFT, "accepted": ACCEPTED}}
"""What every answer of the script says of cache and speculation."""

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
WHOLE_JSON: Any = {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}}


def _call(key: str) -> list[Any]:
    call = [{"call": {"tool": "look_up", "index": 1}}, {"argument": {"key": key, "value": "Oslo"}}, "</call>"]
    return [{"control": ["</response>", "<tools>", *call, "</tools>", "</message>"]}, "stop"]


def _rule(contains: str, reply: list[Any], **more: Any) -> dict[str, Any]:
    return {"when": {"contains": contains}, "reply": reply, **SPECULATES, **more}


SCRIPT = [
    _rule("call well", _call("city")),
    _rule("call badly", _call("town")),
    _rule("as JSON", [{"text": '{"city": "Oslo"}'}, *END]),
    _rule("think", [{"text": "It is known."}, "</think>", "<response>", {"text": "Yes."}, *END]),
    _rule("stray", [{"text": "Yes."}, {"control": ["</response>"]}, {"text": "And more."}, {"control": ["</message>"]}, "stop"]),
    _rule("break", [{"text": "Well, "}, "error"]),
    _rule("hang", [{"text": "Well, "}, "hang"]),
    _rule("", [{"repeat": {"times": 20, "of": [{"text": "lorem "}]}}, *END], step_interval_ms=2),
]  # fmt: skip
MODELS = {
    "kimi-k3": {"grammar": "off", "price_per_million_tokens_usd": {"input": 3, "cached_input": 0.3, "output": 15}},
    "kimi-k3-strict": {"grammar": "off", "tool_call_policy": "retry", "tool_call_retries": 1},
}
TENANTS: dict[str, Any] = {
    "acme": {"weight": 3, "budget": {"tokens_per_day": 1_000_000}},
    "zeta": {"weight": 1},
    "small": {"limits": {"requests_per_minute": 1}},
}


@dataclass
class Scene:
    """Replicas, the Prometheus that watches them, and how often each outcome was seen by their clients."""

    houses: list[House]
    prometheus: Prometheus
    outcomes: Counter[str] = field(default_factory=Counter)
    num_before: int = 0
    """Rows of the ledger before the second round."""
    lookups_before: tuple[int, int] = (0, 0)
    """The engines' lookups by then."""
    second_from_s: float = 0.0
    """When the first round was over; of the second, nothing had happened."""
    texts: list[str] = field(default_factory=list)
    """What the first replica told in each round, when all had happened there and some were waiting."""

    def rows(self) -> list[dict[str, Any]]:
        """The ledger of all replicas, once it has all requests that are charged to somebody."""
        num = sum(self.outcomes.values()) - self.outcomes["unauthenticated"]
        rows: list[dict[str, Any]] = wait_for(
            lambda: [row for house in self.houses for row in ledger_rows(house.path)], lambda rows: len(rows) >= num
        )
        assert num == len(rows)
        return sorted(rows, key=lambda row: row["ended_unix_ms"])

    def lookups(self) -> tuple[int, int]:
        """Prompt tokens that the engines found in their prefix caches, and looked up there, by their own records."""
        made = [entry for house in self.houses for entry in house.gateway.engine.recorded()["requests"]]
        return sum(entry["num_cached_tokens"] for entry in made), sum(len(entry["token_ids"]) for entry in made)

    @property
    def second_round(self) -> str:
        """The time since the first round, as a range of a query: what a rate over it has seen is the second round alone."""
        return f"{round((time.time() - self.second_from_s) * 1000)}ms"

    def look(self) -> None:
        """Have Prometheus take in all that there is now."""
        self.prometheus.wait_scraped()

    def round(self) -> None:
        """All that can happen, on every replica."""
        for house in self.houses:
            for name in ("acme", "zeta"):
                self._ask_everything(house.customer(name))
            small = house.customer("small")
            for _ in range(2):
                self._saw(small.chat("hi").outcome)
            answer = httpx.post(f"{house.url}/v1/chat/completions", json=small.body("hi"))
            self._saw((answer.status_code, "invalid_api_key"))
            self._wait_in_line(house)

    def _ask_everything(self, customer: Customer) -> None:
        for stream in (False, True):
            self._saw(customer.chat("tell me", stream=stream).outcome)
        long = "tell me of " + "the weather, " * 40
        tools: Any = {"tools": [TOOL]}
        for text, fields in (
            (long, {}), ("call well", tools), ("call badly", tools), ("call badly", {**tools, "model": "kimi-k3-strict"}),
            ("as JSON", WHOLE_JSON), ("think", {"thinking": {"type": "enabled"}}), ("stray", {}), ("break", {}),
            ("hi", {"temperature": "hot"}), ("hi", {"model": "no-such"}),
        ):  # fmt: skip
            self._saw(customer.chat(text, **fields).outcome)
        for file in (encoded(28, 30), b"no image"):
            part = {"type": "image_url", "image_url": {"url": data_url(file)}}
            messages = [{"role": "user", "content": [{"type": "text", "text": "look"}, part]}]
            self._saw(customer.chat(messages=messages).outcome)
        far = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/red.png"}}
        self._saw(customer.chat(messages=[{"role": "user", "content": [far]}]).outcome)
        with customer.stream("hang"):
            pass
        self.outcomes["cancelled"] += 1

    def _wait_in_line(self, house: House) -> None:
        """More than there are seats for, until Prometheus has seen it; then all leave."""
        customers = [house.customer(name) for name in ("acme", "zeta")]
        with ExitStack() as open_streams:
            for _ in range(NUM_SEATS):
                open_streams.enter_context(customers[0].stream("hang"))
            for customer in customers:
                open_streams.enter_context(customer.connection("hi"))
            wait_for(lambda: len(house.gateway.gateway.queue.queued_by_tenant()), lambda num: num == 2)
            self.prometheus.wait_scraped(1)
            if house is self.houses[0]:
                key = {"authorization": f"Bearer {METRICS_KEY}"}
                self.texts.append(house.http.get(f"{house.url}/metrics", headers=key).text)
        self.outcomes["cancelled"] += NUM_SEATS + 2
        wait_for(lambda: house.gateway.engine.num_unfinished, lambda num: num == 0)

    def _saw(self, outcome: tuple[int, str | None]) -> None:
        self.outcomes[OUTCOMES[outcome[1]]] += 1


OUTCOMES = {
    None: "finished", "rate_limit_exceeded": "limited", "invalid_api_key": "unauthenticated", "engine_error": "error",
    "invalid_value": "invalid", "model_not_found": "invalid", "invalid_image": "invalid", "invalid_tool_call": "invalid_tool_call",
}  # fmt: skip
"""Of an error's code, what metrics and ledger call it."""


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """Both rounds have been played, and all of it is in Prometheus."""
    with ExitStack() as stack:
        metrics = {"access": "key", "key": METRICS_KEY}
        admission = {"reserved_seats": 0}
        houses = [
            stack.enter_context(
                open_house(SCRIPT, seats=NUM_SEATS, metrics=metrics, models=MODELS, tenants=TENANTS, admission=admission)
            )
            for _ in range(2)
        ]
        targets = [urlsplit(house.url).netloc for house in houses]
        played = Scene(houses, stack.enter_context(prometheus(folder, targets, key=METRICS_KEY)))
        played.round()
        played.num_before, played.lookups_before, played.second_from_s = len(played.rows()), played.lookups(), time.time()
        played.look()
        played.round()
        played.rows()
        played.look()
        yield played
