"""Budgets of a day and a month, in tokens and in money, over HTTP; what is spent is remembered over a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import openai
import pytest

from server.clock import SystemClock
from tests.services.redis import RedisServer, own_redis
from tests.wire.customers import END, NANO, Answer, Customer, House, make_house

SCRIPT = [
    {
        "when": {"contains": "long"},
        "step_interval_ms": 1,
        "cached_tokens": 0,
        "reply": [{"repeat": {"times": 2000, "of": [{"text": "lorem "}]}}, *END],
    },
    {"cached_tokens": 0, "reply": [{"text": "yes"}, *END]},
]
SPENT = (429, "insufficient_quota")
ADMITTED = (200, None)
Sizes = dict[str, tuple[int, int]]
NUM_PAID = 150
"""Tokens of an answer that budgets here have room for."""


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    yield from own_redis()


@pytest.fixture(scope="module", params=["memory", "redis"])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    yield from make_house(SCRIPT, request.getfixturevalue("redis") if request.param == "redis" else None)


@pytest.fixture(scope="module")
def sizes(house: House) -> dict[str, tuple[int, int]]:
    """Text -> tokens of its prompt and of its answer."""
    free = house.tenant()
    for text in ("hi", "long"):
        assert free.chat(text, max_tokens=300).outcome == ADMITTED
    hi, long = [(len(entry["token_ids"]), entry["num_generated_tokens"]) for entry in free.at_engine()]
    return {"hi": hi, "long": long}


def left_s(house: House, window: str) -> int:
    """How long the day or the month still lasts, in UTC."""
    now = datetime.fromtimestamp(house.clock.now_s, UTC)
    midnight = now.replace(hour=0, minute=0, second=0)
    end = midnight + timedelta(days=1) if window == "day" else (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
    return round((end - now).total_seconds())


def cost(num_input: int, num_output: int) -> int:
    """In nano-USD, of a prompt of which nothing was cached."""
    return num_input * NANO["input"] + num_output * NANO["output"]


def usd(nano_usd: int) -> str:
    return f"{nano_usd / 10**9:.9f}"


KINDS = ["tokens_per_day", "tokens_per_month", "usd_per_day", "usd_per_month"]


def budget_of(kind: str, num_input: int, num_output: int) -> dict[str, Any]:
    """A budget that pays for so much, and not for a token more."""
    return {kind: usd(cost(num_input, num_output)) if kind.startswith("usd") else num_input + num_output}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_fits_is_admitted_and_no_more(house: House, sizes: Sizes, kind: str, stream: bool) -> None:
    num_input, num_output = sizes["hi"]
    customer = house.tenant(budget=budget_of(kind, 3 * num_input, 3 * num_output))
    answers = [customer.chat(stream=stream, max_tokens=num_output) for _ in range(4)]

    assert [answer.outcome for answer in answers] == [ADMITTED] * 3 + [SPENT]
    refused = answers[3]
    assert refused.error["type"] == "insufficient_quota"
    unit, _, window = kind.partition("_per_")
    assert f"{'USD' if unit == 'usd' else 'tokens'} per {window}" in refused.error["message"]
    assert refused.retry_after_s == left_s(house, window)
    if unit == "tokens":
        limit = 3 * (num_input + num_output)
        assert [answer.limits("tokens") for answer in answers] == [(limit, num * limit // 3) for num in (2, 1, 0, 0)]
        assert {answer.reset_s("tokens") for answer in answers} == {left_s(house, window)}
    rows = house.rows(customer, 4)
    assert [row["outcome"] for row in rows] == ["finished"] * 3 + ["over_budget"]
    assert [row["cost_nano_usd"] for row in rows] == [cost(num_input, num_output)] * 3 + [0]
    assert len(customer.at_engine()) == 3
    house.advance(refused.retry_after_s)
    assert customer.chat(stream=stream).outcome == ADMITTED


def test_a_month_goes_on_when_its_days_end(house: House, sizes: Sizes) -> None:
    num_input, num_output = sizes["hi"]
    house.advance(left_s(house, "month"))
    month = budget_of("tokens_per_month", 2 * num_input, 2 * num_output)
    customer = house.tenant(budget={**month, **budget_of("usd_per_day", num_input, num_output)})

    def ask() -> Answer:
        return customer.chat(max_tokens=num_output)

    first, of_day = ask(), ask()
    assert (first.outcome, of_day.outcome) == (ADMITTED, SPENT)
    assert "USD per day" in of_day.error["message"]
    house.advance(of_day.retry_after_s)
    second, of_month = ask(), ask()
    assert (second.outcome, of_month.outcome) == (ADMITTED, SPENT)
    assert "tokens per month" in of_month.error["message"]
    assert of_month.retry_after_s == left_s(house, "month") > 86400


@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_that_runs_out_in_a_stream(house: House, sizes: Sizes, kind: str) -> None:
    num_input = sizes["long"][0]
    customer = house.tenant(budget=budget_of(kind, num_input, NUM_PAID))
    answer = customer.chat("long", stream=True)

    assert answer.status == 200
    assert not answer.is_done
    assert [frame["error"]["code"] for frame in answer.frames if "error" in frame] == ["insufficient_quota"]
    assert answer.finish_reason is None
    said = "".join(choice["delta"].get("content") or "" for frame in answer.frames[:-1] for choice in frame["choices"])
    check_ran_out(house, customer, num_input)
    assert len(said) >= NUM_PAID - 1
    assert customer.chat(stream=True).outcome == SPENT
    assert f"after {customer.at_engine()[-1]['num_generated_tokens']} tokens of this answer" in answer.error["message"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_that_runs_out_in_a_whole_answer(house: House, sizes: Sizes, kind: str) -> None:
    num_input = sizes["long"][0]
    customer = house.tenant(budget=budget_of(kind, num_input, NUM_PAID))
    answer = customer.chat("long")

    assert answer.outcome == SPENT
    assert answer.error["type"] == "insufficient_quota"
    assert answer.retry_after_s == left_s(house, kind.rpartition("_")[2])
    check_ran_out(house, customer, num_input)
    assert customer.chat().outcome == SPENT


def check_ran_out(house: House, customer: Customer, num_input: int) -> None:
    """It was charged what the engine made, which is what was paid for and one delta."""
    entry, row = customer.at_engine()[-1], house.rows(customer, 1)[0]
    assert (entry["end"], house.gateway.engine.num_unfinished) == ("closed", 0)
    assert NUM_PAID <= entry["num_generated_tokens"] <= NUM_PAID + 1
    assert (row["input_tokens"], row["output_tokens"]) == (num_input, entry["num_generated_tokens"])
    assert (row["outcome"], row["finish_reason"]) == ("over_budget", None)
    assert row["cost_nano_usd"] == cost(num_input, row["output_tokens"])


@pytest.mark.parametrize("stream", [False, True])
def test_choices_spend_one_budget(house: House, sizes: Sizes, stream: bool) -> None:
    """All choices end with it, and each has gone on by a delta at most."""
    num_input = sizes["long"][0]
    customer = house.tenant(budget=budget_of("tokens_per_day", num_input, NUM_PAID))
    answer = customer.chat("long", stream=stream, n=3)

    assert (answer.error["code"], answer.is_done) == ("insufficient_quota", False)
    made = [entry["num_generated_tokens"] for entry in customer.at_engine()]
    row = house.rows(customer, 1)[0]
    assert (len(made), sum(made)) == (3, row["output_tokens"])
    assert NUM_PAID <= row["output_tokens"] <= NUM_PAID + 3
    assert house.gateway.engine.num_unfinished == 0


@pytest.mark.parametrize("stream", [False, True])
def test_what_openais_client_raises(house: House, sizes: Sizes, stream: bool) -> None:
    num_input = sizes["long"][0]
    customer = house.tenant(budget=budget_of("usd_per_day", num_input, NUM_PAID))
    body = {"model": "kimi-k3", "messages": [{"role": "user", "content": "long"}]}
    extra = {"thinking": {"type": "disabled"}}
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key=customer.key, max_retries=0) as client:
        chunks: list[Any] = []
        if stream:
            with pytest.raises(openai.APIError) as ended:
                chunks.extend(
                    client.chat.completions.create(**body, stream=True, extra_body=extra)
                )  # keeps those before the error
            assert len(chunks) >= NUM_PAID
            assert ended.value.code == "insufficient_quota"
        with pytest.raises(openai.RateLimitError) as raised:
            client.chat.completions.create(**body, extra_body=extra)
    assert (raised.value.code, raised.value.type) == ("insufficient_quota", "insufficient_quota")


@pytest.mark.parametrize("kept", ["in the ledger", "in redis, too", "in the ledger, when redis has lost it"])
@pytest.mark.parametrize("kind", ["tokens_per_month", "usd_per_month"])
def test_what_was_spent_before_a_restart(request: pytest.FixtureRequest, tmp_path: Path, kind: str, kept: str) -> None:
    """It counts once, wherever it was kept."""
    storage = {"ledger_url": f"sqlite:///{tmp_path}/gateway.db", "spool_path": f"{tmp_path}/spool"}
    redis = None if kept == "in the ledger" else request.getfixturevalue("redis")
    if redis is not None:
        redis.client.flushall()

    @contextmanager
    def running(budget: dict[str, Any]) -> Iterator[Customer]:
        house = House(SCRIPT, redis, clock=SystemClock(), storage=storage, tenants={"acme": {"budget": budget}})
        try:
            yield house.customer("acme")
        finally:
            house.stop()

    with running({}) as customer:
        assert [customer.chat().outcome for _ in range(2)] == [ADMITTED] * 2
        entry = customer.at_engine()[-1]
    num_input, num_output = len(entry["token_ids"]), entry["num_generated_tokens"]
    if redis is not None and kept.endswith("lost it"):
        redis.client.flushall()
    with running(budget_of(kind, 4 * num_input, 4 * num_output)) as customer:
        assert [customer.chat(max_tokens=num_output).outcome for _ in range(3)] == [ADMITTED, ADMITTED, SPENT]
        assert budget_left(customer) == 0


def budget_left(customer: Customer) -> float:
    """As the metrics have it."""
    lines = customer.http.get(f"{customer.url}/metrics").text.splitlines()
    name = f'k3gw_budget_remaining_ratio{{tenant="{customer.name}"}}'
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))
