"""Work that takes turns with the event loop: bounded in each, in order, all of it done, and at once where it is alone."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.loop_turns import LoopTurns

MOST = 100


async def test_what_comes_alone_is_done_at_once() -> None:
    turns, done = LoopTurns(MOST), []
    for number in range(3):
        assert turns.do(10 * MOST, partial(done.append, number))
        assert number + 1 == len(done)
        await asyncio.sleep(0)


async def test_what_fits_into_a_turn_shares_it_and_the_next_waits() -> None:
    turns, done = LoopTurns(MOST), []
    assert [True, True, False] == [turns.do(MOST // 2, partial(done.append, number)) for number in range(3)]
    assert [0, 1] == done
    await asyncio.sleep(0)
    assert [0, 1, 2] == done


async def test_small_work_does_not_overtake_what_waits() -> None:
    turns, done = LoopTurns(MOST), []
    sizes = (MOST - 1, MOST, 1)
    assert [True, False, False] == [turns.do(size, partial(done.append, size)) for size in sizes]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert list(sizes) == done


async def test_work_that_asks_for_more_gets_a_later_turn() -> None:
    turns, when = LoopTurns(MOST), []
    num_turns = 0

    def again() -> None:
        when.append(num_turns)
        if len(when) < 4:
            turns.do(MOST, again)

    turns.do(MOST, again)
    for num_turns in range(1, 6):  # noqa: B007 - read by `again`
        await asyncio.sleep(0)
    assert 4 == len(set(when)) == len(when)


@given(sizes=st.lists(st.integers(1, 2 * MOST), max_size=60), pauses=st.sets(st.integers(0, 60)), every=st.integers(1, 4))
def test_no_turn_has_more_than_it_may(sizes: list[int], pauses: set[int], every: int) -> None:
    async def run() -> None:
        turns, done, num_turns = LoopTurns(MOST, every=every), list[tuple[int, int]](), 0

        def work(size: int) -> None:
            done.append((num_turns, size))

        for number, size in enumerate(sizes):
            turns.do(size, partial(work, size))
            if number in pauses:
                num_turns += 1
                await asyncio.sleep(0)
        while len(done) < len(sizes):
            before = len(done)
            for _ in range(every):
                num_turns += 1
                await asyncio.sleep(0)
            assert before < len(done), "a turn was let pass"
        assert sizes == [size for _, size in done]
        for turn in range(num_turns + 1):
            assert fits([size for when, size in done if turn == when])
            # Turns are counted from the first piece, so any `every` of them may have the end of one count and the begin of the next.
            of_turns = [size for when, size in done if turn <= when < turn + every]
            assert any(fits(of_turns[:end]) and fits(of_turns[end:]) for end in range(len(of_turns) + 1))

    def fits(pieces: list[int]) -> bool:
        return len(pieces) <= 1 or sum(pieces) <= MOST

    asyncio.run(run())


@pytest.mark.parametrize("num_bytes", [0, 1, MOST, MOST + 1])
async def test_nothing_is_left_to_do_when_all_is_done(num_bytes: int) -> None:
    turns, done = LoopTurns(MOST), []
    turns.do(num_bytes, partial(done.append, 1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert turns.do(MOST, partial(done.append, 2))
    assert [1, 2] == done


async def test_work_that_fails_holds_up_nothing() -> None:
    turns, done, failures = LoopTurns(MOST), [], []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(type(context["exception"])))
    turns.do(MOST, partial(done.append, 1))
    turns.do(MOST, partial(next, iter(())))
    turns.do(MOST, partial(done.append, 2))
    for _ in range(3):
        await asyncio.sleep(0)
    assert [1, 2] == done
    assert [StopIteration] == failures
