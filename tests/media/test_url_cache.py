"""The cache against what it should be: the newest files that fit, each for its time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.clock import ManualClock
from server.media.url_cache import Fetched, UrlCache
from server.payload import PayloadFile

MAX_BYTES = 100
TTL_S = 10.0
steps = st.lists(st.one_of(st.tuples(st.integers(0, 5), st.integers(0, 120), st.booleans()), st.floats(0.5, 12.0)), max_size=30)


def fetched(num_bytes: int, may_be_kept: bool = True) -> Fetched:
    file = PayloadFile()
    file.append(b"x" * num_bytes)
    return Fetched(file, ("img.test",), may_be_kept)


@given(steps)
async def test_against_a_list(script: list[tuple[int, int, bool] | float]) -> None:
    clock = ManualClock()
    cache = UrlCache(MAX_BYTES, TTL_S, clock)
    model: list[tuple[int, Fetched, float]] = []  # least lately used first
    for step in script:
        if isinstance(step, float):
            clock.advance(step)
            continue
        number, num_bytes, may_be_kept = step
        new = fetched(num_bytes, may_be_kept)

        async def load(new: Fetched = new) -> Fetched:
            return new

        kept = next((entry for entry in model if entry[0] == number), None)
        model = [entry for entry in model if entry[0] != number]
        if kept is not None and kept[2] > clock.monotonic_s():
            model.append(kept)
            assert (kept[1], False) == await cache.get((b"scope", str(number)), load)
        else:
            assert (new, True) == await cache.get((b"scope", str(number)), load)
            if may_be_kept and num_bytes <= MAX_BYTES:
                model.append((number, new, clock.monotonic_s() + TTL_S))
                while sum(entry[1].file.num_bytes for entry in model) > MAX_BYTES:
                    model.pop(0)
        assert sum(entry[1].file.num_bytes for entry in model) == cache.num_bytes <= MAX_BYTES


async def test_small_files_are_bounded_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.media.url_cache.MAX_FILES", 2)
    cache = UrlCache(MAX_BYTES, TTL_S, ManualClock())

    async def load() -> Fetched:
        return fetched(1)

    for number in range(4):
        await cache.get((b"s", str(number)), load)

    assert 2 == cache.num_bytes
    assert [True, False, False] == [(await cache.get((b"s", str(number)), load))[1] for number in (1, 1, 3)]


async def test_cleared() -> None:
    cache = UrlCache(MAX_BYTES, TTL_S, ManualClock())
    first = fetched(5)

    async def load() -> Fetched:
        return first

    await cache.get((b"s", "u"), load)
    cache.clear()

    assert 0 == cache.num_bytes
    assert (first, True) == await cache.get((b"s", "u"), load)
