"""What never gets to the engine has its row in the ledger, too: of nothing that was used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.customers import END, NANO, PRICE, Customer, House, ledger_rows, wait_for
from tests.wire.row_checks import check_refused, check_row

SCRIPT = [
    {"when": {"contains": "hold"}, "reply": [{"text": "Hello"}, "hang"]},
    {"cached_tokens": 0, "reply": [{"text": "The answer is yes."}, *END]},
]
MODELS = {"kimi-k3": {"price_per_million_tokens_usd": PRICE}, "their-own": {}}
both_ways = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    house = House(SCRIPT, models=MODELS)
    try:
        yield house
    finally:
        house.stop()


@pytest.fixture
def one_seat() -> Iterator[House]:
    """A house with one seat, where one request of each tenant may wait."""
    house = House(SCRIPT, seats=1, admission={"max_queued_per_tenant": 1})
    try:
        yield house
    finally:
        house.stop()


def limit_for_one(name: str, num_input: int, num_output: int) -> dict[str, Any]:
    """What one request takes, or nearly two."""
    cost = num_input * NANO["input"] + num_output * NANO["output"]
    return {
        "requests": {"limits": {"requests_per_minute": 1}},
        "input tokens": {"limits": {"input_tokens_per_minute": 2 * num_input - 1}},
        "uncached input tokens": {"limits": {"uncached_input_tokens_per_minute": 2 * num_input - 1}},
        "output tokens": {"limits": {"output_tokens_per_minute": 2 * num_output - 1}},
        "tokens of a day": {"budget": {"tokens_per_day": num_input + num_output}},
        "dollars of a month": {"budget": {"usd_per_month": f"{cost / 10**9:.9f}"}},
    }[name]


@both_ways
@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("requests", "limited"),
        ("input tokens", "limited"),
        ("uncached input tokens", "limited"),
        ("output tokens", "limited"),
        ("tokens of a day", "over_budget"),
        ("dollars of a month", "over_budget"),
    ],
)
def test_refused_by_a_limit(house: House, name: str, outcome: str, stream: bool) -> None:
    free = house.tenant()
    assert free.chat().status == 200
    first = house.rows(free, 1)[0]
    num_input, num_output = first["input_tokens"], first["output_tokens"]
    customer = house.tenant(**limit_for_one(name, num_input, num_output))
    answers = [customer.chat(stream=stream, max_tokens=num_output).status for _ in range(2)]

    assert answers == [200, 429]
    check_refused(house, customer, 2, outcome)


@both_ways
def test_refused_because_of_others_that_run(house: House, stream: bool) -> None:
    customer = house.tenant(limits={"concurrent_requests": 1})
    with customer.stream("hold"):
        assert customer.chat(stream=stream).status == 429
        check_refused(house, customer, 1, "limited", num_asked=1)


WRONG: dict[str, tuple[dict[str, Any], int, str]] = {
    "a wrong value": ({"temperature": "hot"}, 400, "invalid"),
    "a reserved field": ({"cache_salt": "x"}, 400, "invalid"),
    "no messages": ({"messages": []}, 400, "invalid"),
    "a prompt that is too long": ({"messages": [{"role": "user", "content": "x" * (1 << 20)}]}, 400, "invalid"),
    "an unknown model": ({"model": "gpt-4"}, 404, "invalid"),
    "a schema that is none": ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}}}]}, 400, "invalid"),
    "a model of others": ({"model": "their-own"}, 403, "denied"),
}  # fmt: skip


@both_ways
@pytest.mark.parametrize("name", WRONG)
def test_wrong_requests(house: House, name: str, stream: bool) -> None:
    fields, status, outcome = WRONG[name]
    customer = house.tenant(models=["kimi-k3"])

    assert customer.chat(stream=stream, **fields).status == status
    check_row(house, customer, outcome)


def test_what_is_no_request(house: House) -> None:
    customer = house.tenant()
    url = f"{house.url}/v1/chat/completions"
    assert customer.http.post(url, content=b"{", headers=customer.headers).status_code == 400
    check_row(house, customer, "invalid")


def test_a_suspended_tenant(house: House) -> None:
    customer = house.tenant(suspended=True)
    assert customer.chat().status == 403
    house.set(customer.name)
    check_row(house, customer, "denied")


def test_what_nobody_is_charged_with(house: House) -> None:
    """Neither who is not known, nor who asks for no answer, has a row; they come before one that has."""
    customer = house.tenant()
    nobody = Customer(house.http, house.url, "nobody", "k3gw-nobody-has-this-key")
    assert nobody.chat().status == 401
    assert house.http.get(f"{house.url}/v1/models", headers=customer.headers).status_code == 200
    assert house.http.get(f"{house.url}/v1/nothing", headers=customer.headers).status_code == 404
    assert customer.chat().status == 200
    check_row(house, customer, "finished", "stop")
    assert {row["tenant"] for row in ledger_rows(house.path)} & {"", "nobody"} == set()


@both_ways
def test_a_full_queue(one_seat: House, stream: bool) -> None:
    first, customer = one_seat.tenant(), one_seat.tenant(limits={"requests_per_minute": 2})
    with first.stream("hold"), customer.connection(stream=stream):
        wait_for(lambda: one_seat.gateway.gateway.queue.num_queued)
        refused = customer.chat(stream=stream)
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert refused.retry_after_s >= 1
        check_refused(one_seat, customer, 1, "limited", num_asked=0)
        assert customer.chat(stream=stream).limits("requests") == (2, 0), "what was refused is no request"
    assert [row["outcome"] for row in one_seat.rows(customer, 3)].count("limited") == 2
