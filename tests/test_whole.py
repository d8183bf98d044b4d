"""What workers say together: gateways that stand still, each asked for its part."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from server import whole
from server.admission.limits import Standing
from server.context import Budget, Tenant
from server.dashboard import parts
from server.dashboard.dashboard import Asked
from server.dashboard.points import COLUMNS
from server.dashboard.replica import whole_status
from server.dashboard.tenants import View
from server.engine.base import EngineStats, EngineStep
from server.errors import OverloadedError
from server.gateway import Gateway
from tests.dashboard.tables import Still

ACME = Tenant("acme", budget=Budget(tokens_per_day=1000))
EMCA = Tenant("emca")


def _metrics(still: Still, _: bytes) -> AsyncIterator[bytes]:
    return whole.metrics_part(still.gateway)


class Beside:
    """`Others` in one process. `away`: those that do not answer."""

    def __init__(self, index: int, stills: Sequence[Still]) -> None:
        self.index = index
        self.count = len(stills)
        self.away: set[int] = set()
        self._answers: list[dict[str, parts.Answer]] = [
            {
                whole.METRICS: partial(_metrics, still),
                **parts.answers(still.gateway, still.dashboard),
            }
            for still in stills
        ]

    async def ask_all(self, question: str, argument: bytes = b"") -> list[list[bytes]]:
        return [await self.ask(index, question, argument) for index in range(self.count)]

    async def ask(self, index: int, question: str, argument: bytes = b"") -> list[bytes]:
        if index in self.away:
            raise OverloadedError("it does not answer")
        return [part async for part in self._answers[index][question](argument)]


@pytest.fixture
def pair() -> Iterator[list[Still]]:
    stills = [Still(ACME, EMCA) for _ in range(2)]
    for index, still in enumerate(stills):
        still.gateway.others = Beside(index, stills)
    yield stills
    for still in stills:
        still.close()


async def figures(still: Still, **view: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(await still.dashboard.answer(Asked("", 0, View(**view)).encoded))
    return answer


async def scrape(still: Still) -> dict[str, float]:
    assert still.gateway.others is not None
    text = b"".join([part async for part in await whole.exposition(still.gateway.others)]).decode()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in text.splitlines() if line[0] != "#")}


async def test_the_table_and_the_plots_are_of_all_whichever_is_asked(pair: list[Still]) -> None:
    first, second = pair
    await first.dashboard.answer(Asked("", 0, View()).encoded)
    first.go(4)
    first.end(first.begin("acme", num_input=100, num_output=10, num_cached=50))
    second.end(second.begin("acme", num_input=300, num_output=30, num_cached=50))
    second.begin("emca", num_input=60, num_output=6)  # under way
    await first.dashboard._elsewhere.look()
    first.go(2)

    pages = [await figures(still, sort="name", descending=False) for still in pair]
    assert pages[0] == pages[1]
    acme, emca = pages[0]["tenants"]["rows"]
    assert (2, 400, 100, 40, 0.25) == tuple(
        acme[name] for name in ("requests", "input_tokens", "cached_tokens", "output_tokens", "cache_hit_ratio")
    )
    assert (0, 60, 6) == (emca["requests"], emca["input_tokens"], emca["output_tokens"])
    point = dict(zip(COLUMNS, pages[0]["points"][-1], strict=True))
    assert (460 / 4, 46 / 4) == pytest.approx((point["input_tokens_per_s"], point["output_tokens_per_s"]), abs=1e-3)
    assert (8, 2) == (pages[0]["seats"], pages[0]["replica"]["workers"])


async def test_what_is_known_last_of_a_budget_counts(pair: list[Still], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pair
    now_s = first.gateway.clock.unix_s()
    for still, spent, told_s in ((first, 100, now_s - 3), (second, 750, now_s - 1)):
        standing = Standing((1, 0, 0, 0), 60.0, 2, (spent, spent, 0, 0), (now_s + 999, now_s + 999), told_s)
        monkeypatch.setattr(
            still.gateway.limits, "standing", lambda tenant, standing=standing: standing if tenant == ACME else None
        )
        still.end(still.begin("acme"))

    (row, _) = (await figures(first, sort="name", descending=False))["tenants"]["rows"]
    assert (0.25, [750, 1000]) == (row["budget_left"], row["budget"]["tokens_per_day"])
    assert 2 == row["running"]


async def test_one_that_does_not_answer_is_as_it_was(pair: list[Still]) -> None:
    first, second = pair
    second.end(second.begin("acme", num_input=300, num_output=30))
    before = await figures(first, sort="name", descending=False)
    assert isinstance(first.gateway.others, Beside)
    elsewhere = first.dashboard._elsewhere
    first.gateway.others.away = {1}
    await elsewhere.look_at_tenants()
    await elsewhere.look()

    assert before["tenants"] == first.dashboard.tenants.page(View(sort="name", descending=False))
    with pytest.raises(OverloadedError):
        await whole_status(first.gateway)


async def test_the_state_is_that_of_the_worst(pair: list[Still]) -> None:
    for still in pair:
        still.gateway.storage.opened.set()
    assert "ready" == (await whole_status(pair[0].gateway))["status"]
    pair[1].gateway.draining = True
    assert ["draining"] * 2 == [(await whole_status(still.gateway))["status"] for still in pair]


async def test_a_scrape_is_of_one_engine_where_they_share_it(pair: list[Still], monkeypatch: pytest.MonkeyPatch) -> None:
    for index, still in enumerate(pair):
        engine = still.gateway.engine
        assert engine is not None
        still.gateway.seats_elsewhere = object()  # type: ignore[assignment]
        steps = {0: EngineStep(10.0 + index, 3 + index, index, 0.5 - index / 4)}
        monkeypatch.setattr(engine, "_stats", EngineStats(num_preemptions=1 + index, num_prefix_queried_tokens=100, steps=steps))
        monkeypatch.setattr(type(engine), "num_unfinished", property(lambda _: 1))

    scrapes = [await scrape(still) for still in pair]
    assert scrapes[0] == scrapes[1]
    names = (
        "up",
        "seats",
        "running_requests",
        "waiting_requests",
        "kv_cache_usage_ratio",
        "preemptions_total",
        "prefix_cache_queried_tokens_total",
    )
    assert [1, 4, 4, 1, 0.25, 3, 200] == [scrapes[0][f"k3gw_engine_{name}"] for name in names]


async def test_while_one_has_no_engine_there_is_none(pair: list[Still]) -> None:
    pair[1].gateway.engine = None

    found = await scrape(pair[0])
    assert (0, False) == (found["k3gw_engine_up"], "k3gw_engine_seats" in found)


def test_a_gateway_alone_asks_nobody() -> None:
    still = Still(ACME)
    try:
        gateway: Gateway = still.gateway
        assert "workers" not in asyncio.run(whole_status(gateway))
        assert 1 == len(asyncio.run(figures(still))["tenants"]["rows"])
    finally:
        still.close()
