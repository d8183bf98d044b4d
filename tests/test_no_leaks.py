"""Requests that end in every way leave nothing behind, and all counts of them agree; and the measurement would notice otherwise."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from bench.leak_load import ENDINGS
from bench.leaks import Figures, Run
from server.admission.limits import NOTHING
from server.admission.place import Place
from server.admission.ticket import Ticket
from server.choice import Choice
from server.generation import Generation
from server.metrics.recorder import Recorder
from server.record import GenerationRecord
from server.streaming.answers import OpenAnswer
from server.usage.ledger import Ledger
from tests.services.redis import RedisServer, own_redis

OUTCOMES = {
    "finished", "cancelled", "timeout", "rejected", "limited", "over_budget", "error", "engine_dead", "invalid", "denied",
    "invalid_tool_call",
}  # fmt: skip
KEPT: list[object] = []


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Engines that fail thousands of times are logged each time."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)
    KEPT.clear()


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    yield from own_redis()


def check(figures: Figures, num_requests: int) -> None:
    assert [] == figures.examples
    assert num_requests == figures.requests == figures.rows
    assert figures.engine_generated_tokens == figures.output_tokens + figures.discarded_tokens > 0
    assert OUTCOMES == set(figures.outcomes)
    assert set(ENDINGS) == set(figures.endings)


def test_nothing_is_left_and_all_counts_agree(tmp_path: Path) -> None:
    figures = Run(tmp_path, 2400, seed=7, num_in_round=600).run()

    check(figures, 2400)
    assert (4, 2, 1) == (figures.gateways, figures.engines_died, figures.drained)


def test_a_seed_asks_the_same_again(tmp_path: Path) -> None:
    runs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        figures = Run(tmp_path / name, 100, seed=3).run()
        runs.append((figures.endings, figures.outcomes["denied"]))

    assert runs[0] == runs[1]
    assert 100 == runs[0][0].total()


def test_with_limits_in_redis(tmp_path: Path, redis_server: RedisServer) -> None:
    figures = Run(tmp_path, 500, seed=11, redis_url=redis_server.url).run()

    assert [] == figures.examples
    assert 500 == figures.rows
    assert figures.reserved > 100


@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_a_hundred_thousand(tmp_path: Path, seed: int) -> None:
    check(Run(tmp_path, 100_000, seed).run(), 100_000)


def sometimes(method: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    """Every fifth call of `method` does something else."""
    num_calls = 0

    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        return (instead if num_calls % 5 == 0 else method)(*args, **kwargs)

    return called


def nothing(*args: Any) -> None: ...


async def leave_a_task(answer: OpenAnswer, *error: Any) -> None:
    KEPT.append(asyncio.ensure_future(asyncio.Event().wait()))
    await CLOSE(answer, *error)


async def forget_the_alarm(answer: OpenAnswer, *error: Any) -> None:
    answer._answers.leave(answer)


def count_a_token_more(choice: Choice) -> None:
    choice._record.num_output_tokens += 1
    REMEMBER(choice)


def charge_nothing(ticket: Ticket, usage: object) -> None:
    SETTLE(ticket, NOTHING)


def stay_with_some(place: Place) -> None:
    """`leave` is called twice, so that one of them left out would do no harm; who has no seat leaves in the end anyway."""
    if not place.is_seated or place.serial % 7:
        LEAVE(place)


def write_twice(ledger: Ledger, record: GenerationRecord) -> None:
    WRITE(ledger, record)
    WRITE(ledger, record)


def keep(generation: Generation, *args: Any) -> None:
    KEPT.append(generation)
    BEGIN(generation, *args)


CLOSE, REMEMBER, SETTLE, WRITE, BEGIN, LEAVE = (
    OpenAnswer.__aexit__, Choice._remember, Ticket.settle, Ledger.ended, Generation.__init__, Place.leave,
)  # fmt: skip


@pytest.mark.parametrize(
    ("owner", "method", "instead", "found"),
    [
        (Ticket, "settle", nothing, {"requests that run", "settlements of a ticket", "spent of budgets"}),
        (Ticket, "settle", charge_nothing, {"spent of budgets", "used of the minute"}),
        (Place, "leave", stay_with_some, {"seats taken"}),
        (Ledger, "ended", nothing, {"rows of a request", "requests in metrics"}),
        (Ledger, "ended", write_twice, {"rows of a request", "requests in metrics"}),
        (Recorder, "ended", nothing, {"k3gw_inflight_requests", "requests in metrics"}),
        (Choice, "_remember", count_a_token_more, {"generated tokens"}),
        (OpenAnswer, "__aexit__", leave_a_task, {"tasks"}),
        (OpenAnswer, "__aexit__", forget_the_alarm, {"timers"}),
        (Generation, "__init__", keep, {"objects of requests"}),
    ],
)
def test_what_goes_wrong_now_and_then_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, instead: Callable[..., Any], found: set[str]
) -> None:
    monkeypatch.setattr(owner, method, instead if instead is stay_with_some else sometimes(getattr(owner, method), instead))
    figures = Run(tmp_path, 200, seed=5).run()

    assert found == found & set(figures.faults), figures.faults
