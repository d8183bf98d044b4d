"""Bodies that arrive, or wait, are bounded for each tenant, so that a few large ones can't fill the memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.wire.customers import END, House, open_house, wait_for

SCRIPT = [{"when": {"contains": "hang"}, "reply": [{"text": "."}, "hang"]}, {"reply": [{"text": "ok"}, *END]}]
NUM_BYTES = 100_000


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with open_house(SCRIPT, admission={"max_held_bytes": 10 * NUM_BYTES}, http={"max_body_bytes": 5 * NUM_BYTES // 2}) as opened:
        yield opened


def test_a_tenants_bodies_are_bounded_together(house: House) -> None:
    greedy, neighbour, held = house.tenant(), house.tenant(), house.gateway.gateway.held
    large = "hang" + "x" * NUM_BYTES
    with greedy.connection(large, cut=5), greedy.stream(large):
        wait_for(lambda: held.total, lambda total: total > 2 * NUM_BYTES)
        answer = greedy.chat(large)
        assert (429, "rate_limit_exceeded") == answer.outcome
        assert "hold too much data" in answer.error["message"]
        assert 1 == answer.retry_after_s
        assert 200 == greedy.chat("hi").status
        assert 200 == neighbour.chat("x" * NUM_BYTES).status
    wait_for(lambda: held.total, lambda total: total == 0)
    assert 200 == greedy.chat("x" * NUM_BYTES).status
    (row,) = [row for row in house.rows(greedy, 5) if row["outcome"] == "limited"]
    assert 0 == row["cost_nano_usd"]


def test_all_bodies_together_are_bounded(house: House) -> None:
    tenants, held = [house.tenant() for _ in range(6)], house.gateway.gateway.held
    large = "hang" + "x" * (2 * NUM_BYTES)
    with tenants[0].stream(large), tenants[1].stream(large), tenants[2].stream(large), tenants[3].stream(large):
        answer = tenants[4].chat(large)
        assert (503, "overloaded") == answer.outcome
        assert answer.retry_after_s >= 1
        assert 200 == tenants[5].chat("hi").status
    wait_for(lambda: held.total, lambda total: total == 0)
