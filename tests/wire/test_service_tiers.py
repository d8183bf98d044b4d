"""`service_tier`: whose turn it is among one tenant's own requests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.wire.customers import END, House, make_house, wait_for

SCRIPT = [
    {"when": {"contains": "hold"}, "reply": [{"text": "a"}, "hang"]},
    {"reply": [{"text": "yes"}, *END]},
]
TIERS = ["flex", "default", "auto", "scale", None, "priority"]


@pytest.fixture
def house() -> Iterator[House]:
    yield from make_house(SCRIPT, None, seats=1)


@pytest.mark.parametrize("stream", [False, True])
def test_priority_first_and_flex_last(house: House, stream: bool) -> None:
    customer, queue = house.tenant(), house.gateway.gateway.queue
    with ThreadPoolExecutor(len(TIERS)) as pool:
        with customer.stream("hold"):
            asked = []
            for number, tier in enumerate(TIERS, start=1):
                asked.append(pool.submit(customer.chat, f"tier {tier}", stream=stream, service_tier=tier))
                wait_for(lambda: queue.num_queued, number.__eq__)
        assert [200] * len(TIERS) == [answer.result().status for answer in asked]

    order = [entry["hints"]["last_user_text"].removeprefix("tier ") for entry in customer.at_engine()[1:]]
    assert ["priority", "default", "auto", "scale", "None", "flex"] == order


def test_another_one_is_named_with_what_there_is(house: House) -> None:
    answer = house.tenant().chat(service_tier="express")

    assert (400, "service_tier") == (answer.status, answer.error["param"])
