"""What is refused for want of room is counted by tenant and reason, and how long the others waited."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.wire.customers import END, Customer, House, open_house, wait_for

SCRIPT = [
    {"when": {"contains": "hold"}, "reply": [{"text": "a"}, "hang"]},
    {"when": {"contains": "long"}, "reply": [{"repeat": {"times": 2000, "of": [{"text": "lorem "}]}}, *END]},
    {"cached_tokens": 0, "reply": [{"text": "yes"}, *END]},
]
both_ways = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with open_house(SCRIPT) as house:
        yield house


def samples(house: House, customer: Customer, name: str) -> dict[str, float]:
    """Of one tenant's samples of this name: the reason, or "" -> value."""
    text = house.http.get(f"{house.url}/metrics", headers=house.gateway.admin).text
    return {
        sample.labels.get("reason", ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"k3gw_{name}" and sample.labels.get("tenant") == customer.name
    }


def num_input(house: House) -> int:
    free = house.tenant()
    assert free.chat().status == 200
    return len(free.at_engine()[0]["token_ids"])


@both_ways
@pytest.mark.parametrize("kind", ["requests", "input_tokens", "uncached_input_tokens", "output_tokens"])
def test_a_minute_that_is_full(house: House, kind: str, stream: bool) -> None:
    size = num_input(house)
    most = {"requests": 1, "input_tokens": 2 * size - 1, "uncached_input_tokens": 2 * size - 1, "output_tokens": 2 * 50 - 1}[kind]
    customer = house.tenant(limits={f"{kind}_per_minute": most})
    if kind == "output_tokens":
        with customer.stream("hold", max_tokens=50):
            assert customer.chat(max_tokens=50, stream=stream).status == 429
    else:
        assert customer.chat().status == 200
        assert customer.chat(stream=stream).status == 429

    assert {kind: 1} == samples(house, customer, "rejected_total")


@both_ways
def test_as_many_as_may_run(house: House, stream: bool) -> None:
    customer = house.tenant(limits={"concurrent_requests": 1})
    with customer.stream("hold"):
        assert customer.chat(stream=stream).status == 429

    assert {"concurrent_requests": 1} == samples(house, customer, "rejected_total")


@both_ways
@pytest.mark.parametrize("kind", ["tokens_per_day", "usd_per_month"])
def test_a_budget_that_ends_an_answer_and_then_begins_none(house: House, kind: str, stream: bool) -> None:
    customer = house.tenant(budget={kind: 500 if kind == "tokens_per_day" else 0.005})
    assert customer.chat("long", stream=stream).error["code"] == "insufficient_quota"
    assert {kind: 1} == samples(house, customer, "rejected_total")
    assert customer.chat(stream=stream).status == 429

    assert {kind: 2} == samples(house, customer, "rejected_total")


@both_ways
def test_a_full_queue_and_a_wait_that_was_too_long(stream: bool) -> None:
    settings = {"max_queued_per_tenant": 1, "max_queued": 8, "queue_timeout_s": 0.3}
    with open_house(SCRIPT, seats=1, admission=settings) as house:
        first, customer, queue = house.tenant(), house.tenant(), house.gateway.gateway.queue
        with first.stream("hold"):
            with customer.connection(stream=stream):
                wait_for(lambda: queue.num_queued)
                assert customer.chat(stream=stream, n=2).error["code"] == "rate_limit_exceeded"
                wait_for(lambda: queue.num_queued, lambda num: num == 0)
            house.rows(customer, 2)
            assert {"queue_full": 1, "queue_timeout": 1} == samples(house, customer, "rejected_total")
            assert {} == samples(house, customer, "queue_seconds_count"), "who got no seat has not waited for one"
        house.rows(first, 1)
        assert {"": 1} == samples(house, first, "queue_seconds_count")
        assert {} == samples(house, first, "rejected_total")
