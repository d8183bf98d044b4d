"""How scripted requests end before their time, and who has a seat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from server.engine.base import EngineHints
from server.errors import EngineDeadError, EngineError

Staged = Callable[..., Any]
HANG = {"when": {"contains": "hang"}, "reply": [{"text": "…"}, "hang"]}
DIE = {"when": {"contains": "die"}, "reply": [{"text": "oh"}, "die"]}
OK = {"reply": [{"text": "ok"}]}


def named(text: str) -> EngineHints:
    return EngineHints(last_user_text=text)


async def test_error_fails_this_request_only(staged: Staged) -> None:
    stage = staged(
        [
            {"when": {"contains": "bad"}, "reply": [{"text": "a"}, "error"]},
            {"when": {"contains": "worse"}, "reply": ["error"]},
            OK,
        ]
    )
    reader, first = await stage.start(hints=named("bad")), await stage.start(hints=named("worse"))
    assert ([97], EngineError) == (reader.token_ids, type(reader.error))
    assert ([], EngineError) == (first.token_ids, type(first.error))
    assert ["error", "error"] == [entry["end"] for entry in stage.engine.recorded()["requests"]]
    assert "ok<|end_of_msg|>" == await stage.text()
    assert 0 == stage.engine.num_unfinished
    assert not stage.engine.dead


async def test_die_takes_everything_along(staged: Staged) -> None:
    stage = staged([HANG, DIE, {"step_interval_ms": 10, "reply": [{"text": "slow"}]}], seats=3)
    death = asyncio.ensure_future(stage.engine.wait_dead())
    others = [await stage.start(hints=named("hang")), await stage.start()]
    assert (False, False) == (stage.engine.dead, death.done())
    culprit = await stage.start(hints=named("die"))
    assert [111, 104] == culprit.token_ids
    assert [EngineDeadError] * 3 == [type(reader.error) for reader in (*others, culprit)]
    assert (True, True, 0) == (stage.engine.dead, death.done(), stage.engine.num_unfinished)
    with pytest.raises(EngineDeadError):
        await stage.ask()
    assert ["dead"] * 4 == [entry["end"] for entry in stage.engine.recorded()["requests"]]


async def test_death_reaches_those_that_wait_for_a_seat(staged: Staged) -> None:
    stage = staged([HANG], seats=1)
    await stage.start(hints=named("hang"))
    waiting = await stage.start(hints=named("hang"))
    stage.engine.kill()
    await stage.settle()
    assert ([], EngineDeadError) == (waiting.deltas, type(waiting.error))


async def test_hang_says_no_more_until_it_is_aborted_or_closed(staged: Staged) -> None:
    stage = staged([HANG])
    aborted, cancelled = await stage.start(hints=named("hang")), await stage.start(hints=named("hang"))
    await stage.advance(1e6)
    assert 2 == stage.engine.num_unfinished
    await stage.engine.abort("r1")
    cancelled.task.cancel()
    await stage.settle()
    assert [None, None, None, "abort"] == [delta.finish_reason for delta in aborted.deltas]
    assert cancelled.task.cancelled()
    assert 0 == stage.engine.num_unfinished


async def test_abort_ends_a_pause_and_a_place_in_the_queue(staged: Staged) -> None:
    stage = staged([{"reply": [{"wait_ms": 1000}]}], seats=1)
    pausing, waiting = await stage.start(), await stage.start()
    await stage.engine.abort("r2")
    await stage.engine.abort("r1")
    await stage.settle()
    assert [["abort"]] * 2 == [[delta.finish_reason for delta in reader.deltas] for reader in (pausing, waiting)]
    assert ([], 0) == (stage.timer.pending, stage.engine.num_unfinished)


async def test_close_ends_what_runs_and_refuses_what_comes(staged: Staged) -> None:
    stage = staged([HANG])
    death = asyncio.ensure_future(stage.engine.wait_dead())
    reader = await stage.start(hints=named("hang"))
    await stage.engine.close()
    await stage.engine.close()
    await stage.settle()
    assert (EngineDeadError, 0, False) == (type(reader.error), stage.engine.num_unfinished, death.done())
    with pytest.raises(EngineDeadError, match="closed"):
        await stage.ask()
    death.cancel()


async def test_seats_go_by_priority_then_by_arrival(staged: Staged) -> None:
    stage = staged([{"step_interval_ms": 10, "reply": [{"text": "a"}, "length"]}], seats=1)
    readers = [await stage.start(priority=priority) for priority in (0, 1, 0, -1, 1)]
    assert (1, 4) == (stage.engine.stats.num_running, stage.engine.stats.num_waiting)
    order: list[int] = []
    for _ in readers:
        await stage.advance(0.01)
        order += [number for number, reader in enumerate(readers) if reader.task.done() and number not in order]
    assert [0, 3, 2, 1, 4] == order
    assert (0, 0) == (stage.engine.stats.num_running, stage.engine.stats.num_waiting)


@pytest.mark.parametrize("seats", [1, 3])
async def test_no_more_than_the_seats_generate_at_once(staged: Staged, seats: int) -> None:
    stage = staged([HANG], seats=seats)
    readers = [await stage.start(hints=named("hang")) for _ in range(5)]
    assert [3] * seats + [0] * (5 - seats) == [len(reader.token_ids) for reader in readers]
    readers[4].task.cancel()
    readers[0].task.cancel()
    await stage.settle()
    assert 3 == len(readers[seats].token_ids)
    assert (seats, 3 - seats) == (stage.engine.stats.num_running, stage.engine.stats.num_waiting)


async def test_a_finished_request_frees_its_seat_before_its_reader_is_done(staged: Staged) -> None:
    stage = staged([OK], seats=1)
    generation = stage.engine.generate(stage.request())
    while (await anext(generation)).finish_reason is None:
        pass
    assert 0 == stage.engine.num_unfinished
    assert "ok<|end_of_msg|>" == await stage.text()
    await generation.aclose()
    assert [] == stage.engine.recorded()["aborts"]
