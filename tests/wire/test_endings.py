"""However a request ends, the ledger has one row of it, with the engine's own counts and what they cost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.wire.customers import END, NANO, PRICE, Customer, House, ledger_rows, wait_for

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
SCRIPT = [
    {"when": {"contains": "silent"}, "reply": ["hang"]},
    {"when": {"contains": "hold"}, "reply": [{"text": "Hello"}, "hang"]},
    {"when": {"contains": "break at once"}, "reply": ["error"]},
    {"when": {"contains": "break"}, "reply": [{"text": "Hello"}, "error"]},
    {"when": {"contains": "die at once"}, "reply": ["die"]},
    {"when": {"contains": "die"}, "reply": [{"text": "Hello"}, "die"]},
    {"when": {"contains": "think"}, "reply": [{"text": "I think."}, {"control": ["</think>", "<response>"]}, {"text": "yes"}, *END]},
    {
        "when": {"contains": "call"},
        "reply": [{"control": ["</response>", "<tools>", {"call": {"tool": "weather", "index": 1}}, "</call>", "</tools>", "</message>"]}, "stop"],
    },
    {"when": {"contains": "long prompt"}, "reply": [{"text": "yes"}, *END]},
    {"tokens_per_step": 4, "cached_tokens": 0, "reply": [{"text": "The answer is yes, said at some length."}, *END]},
]  # fmt: skip
both_ways = pytest.mark.parametrize("stream", [False, True])


@contextmanager
def open_house(**settings: Any) -> Iterator[House]:
    models = {"kimi-k3": {"price_per_million_tokens_usd": PRICE}, "their-own": {}}
    house = House(SCRIPT, models=models, **settings)
    try:
        yield house
    finally:
        house.stop()


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with open_house() as house:
        yield house


@pytest.fixture
def one_seat() -> Iterator[House]:
    """A house with one seat, where one request of each tenant may wait."""
    with open_house(seats=1, admission={"max_queued_per_tenant": 1}) as house:
        yield house


def check(house: House, customer: Customer, outcome: str, finish_reason: str | None = None) -> dict[str, Any]:
    """The one row of the tenant's one request, held against what the engine knows of it; nothing is left of the request."""
    (row,) = house.rows(customer, 1)
    made = customer.at_engine()
    counts = (row["input_tokens"], row["cached_tokens"], row["output_tokens"])
    num_input = len(made[0]["token_ids"]) if made else 0
    num_cached = made[0]["num_cached_tokens"] if made else 0
    num_output = sum(entry["num_generated_tokens"] for entry in made)
    assert (num_input, num_cached, num_output) == counts
    femto = (num_input - num_cached) * 3 * 10**9 + num_cached * 3 * 10**8 + num_output * 15 * 10**9
    assert -(-femto // 10**6) == row["cost_nano_usd"]
    assert (outcome, finish_reason) == (row["outcome"], row["finish_reason"])
    assert (row["api"], row["key_id"]) == ("chat", customer.key_id)
    times = [row[name] for name in ("arrived_unix_ms", "admitted_unix_ms", "first_token_unix_ms", "ended_unix_ms")]
    happened = [time for time in times if time is not None]
    assert happened == sorted(happened)
    assert (bool(made), bool(num_output)) == (times[1] is not None, times[2] is not None)
    assert all(entry["end"] is not None for entry in made)
    inner = house.gateway.gateway
    account = inner.queue.accounts.get(customer.name)
    assert inner.limits.num_running(customer.name) == 0
    assert account is None or account.is_idle
    return row


FINISHED: dict[str, tuple[str, dict[str, Any], str]] = {
    "stop": ("hi", {}, "stop"),
    "length": ("hi", {"max_tokens": 7}, "length"),
    "a stop string": ("hi", {"stop": ["said"]}, "stop"),
    "tool calls": ("call", {"tools": [WEATHER]}, "tool_calls"),
    "reasoning": ("think", {"thinking": {"type": "enabled"}}, "stop"),
    "three choices": ("hi", {"n": 3}, "stop"),
    "three choices, cut": ("hi", {"n": 3, "max_tokens": 5}, "length"),
}


@both_ways
@pytest.mark.parametrize("name", FINISHED)
def test_finished(house: House, name: str, stream: bool) -> None:
    text, fields, finish_reason = FINISHED[name]
    customer = house.tenant()
    answer = customer.chat(text, stream=stream, **fields)

    assert answer.status == 200
    assert answer.is_done == stream
    row = check(house, customer, "finished", finish_reason)
    assert (row["model"], row["output_tokens"] > 0) == ("kimi-k3", True)
    assert (row["reasoning_tokens"] > 0) == (name == "reasoning")
    assert len(customer.at_engine()) == fields.get("n", 1)
    if not stream:
        usage = answer.body["usage"]
        assert usage["completion_tokens"] == row["output_tokens"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] == row["reasoning_tokens"]


@both_ways
def test_what_was_cached_costs_less(house: House, stream: bool) -> None:
    customer = house.tenant()
    for _ in range(2):
        assert customer.chat("a long prompt " * 40, stream=stream).status == 200
    new, cached = house.rows(customer, 2)

    assert (new["cached_tokens"], cached["cached_tokens"]) == (0, customer.at_engine()[1]["num_cached_tokens"])
    assert cached["cached_tokens"] > 400
    saved = cached["cached_tokens"] * (NANO["input"] - NANO["cached_input"])
    assert cached["cost_nano_usd"] == new["cost_nano_usd"] - saved


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


def check_refused(house: House, customer: Customer, num_rows: int, outcome: str, num_asked: int | None = None) -> None:
    """The last row is of a request that the engine never saw."""
    row = house.rows(customer, num_rows)[-1]
    assert (row["outcome"], row["finish_reason"], row["admitted_unix_ms"], row["first_token_unix_ms"]) == (
        outcome,
        None,
        None,
        None,
    )
    assert (row["input_tokens"], row["output_tokens"], row["cost_nano_usd"]) == (0, 0, 0)
    assert len(customer.at_engine()) == (num_rows - 1 if num_asked is None else num_asked)


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
    check(house, customer, outcome)


def test_what_is_no_request(house: House) -> None:
    customer = house.tenant()
    url = f"{house.url}/v1/chat/completions"
    assert customer.http.post(url, content=b"{", headers=customer.headers).status_code == 400
    check(house, customer, "invalid")


def test_a_suspended_tenant(house: House) -> None:
    customer = house.tenant(suspended=True)
    assert customer.chat().status == 403
    house.set(customer.name)
    check(house, customer, "denied")


def test_what_nobody_is_charged_with(house: House) -> None:
    """Neither who is not known, nor who asks for no answer, has a row; they come before one that has."""
    customer = house.tenant()
    nobody = Customer(house.http, house.url, "nobody", "k3gw-nobody-has-this-key")
    assert nobody.chat().status == 401
    assert house.http.get(f"{house.url}/v1/models", headers=customer.headers).status_code == 200
    assert house.http.get(f"{house.url}/v1/nothing", headers=customer.headers).status_code == 404
    assert customer.chat().status == 200
    check(house, customer, "finished", "stop")
    assert {row["tenant"] for row in ledger_rows(house.path)} & {"", "nobody"} == set()


@both_ways
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("text", ["silent", "hold"])
def test_a_client_that_leaves(house: House, text: str, n: int, stream: bool) -> None:
    """Before the first token, and in the middle."""
    customer = house.tenant()
    with customer.connection(text, stream=stream, n=n):
        wait_for(lambda: [entry["num_generated_tokens"] for entry in customer.at_engine()] == [0 if text == "silent" else 5] * n)
    row = check(house, customer, "cancelled")
    assert row["input_tokens"] > 0


@both_ways
def test_a_client_that_leaves_before_it_has_sent_all(house: House, stream: bool) -> None:
    customer = house.tenant()
    with customer.connection(cut=5, stream=stream):
        wait_for(lambda: house.gateway.gateway.answers.num_open)
    check(house, customer, "cancelled")


@both_ways
def test_a_client_that_leaves_while_its_prompt_is_rendered(stream: bool) -> None:
    with open_house() as house:
        generator, begun = house.gateway.gateway.generator(), threading.Event()

        async def prepare(job: Any) -> Any:
            begun.set()
            await asyncio.Event().wait()

        generator.prepare = prepare  # type: ignore[method-assign]
        customer = house.tenant()
        with customer.connection(stream=stream):
            assert begun.wait(15)
        check(house, customer, "cancelled")


@both_ways
def test_a_client_that_leaves_the_queue(one_seat: House, stream: bool) -> None:
    first, customer = one_seat.tenant(), one_seat.tenant()
    with first.stream("hold"):
        with customer.connection(stream=stream):
            wait_for(lambda: one_seat.gateway.gateway.queue.num_queued)
        row = check(one_seat, customer, "cancelled")
        assert (row["input_tokens"], row["admitted_unix_ms"]) == (0, None)
    check(one_seat, first, "cancelled")
    assert first.chat().status == 200


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


@both_ways
def test_waiting_for_too_long(stream: bool) -> None:
    with open_house(seats=1, admission={"queue_timeout_s": 0.2}) as house:
        first, customer = house.tenant(), house.tenant()
        with first.stream("hold"):
            answer = customer.chat(stream=stream)
            assert (answer.status, answer.error["code"]) == (503, "queue_timeout")
            assert answer.retry_after_s >= 1
            check(house, customer, "rejected")


@both_ways
@pytest.mark.parametrize("text", ["silent", "hold"])
def test_taking_too_long(text: str, stream: bool) -> None:
    with open_house(admission={"request_timeout_s": 0.4}) as house:
        customer = house.tenant()
        answer = customer.chat(text, stream=stream)

        assert answer.status == (200 if stream and text == "hold" else 504)
        assert (answer.error["code"], answer.is_done) == ("deadline_exceeded", False)
        row = check(house, customer, "timeout")
        assert row["output_tokens"] == (5 if text == "hold" else 0)


@both_ways
def test_taking_too_long_in_the_queue(one_seat: House, stream: bool) -> None:
    first, customer = one_seat.tenant(), one_seat.tenant()
    with first.stream("hold"):
        one_seat.gateway.gateway.answers.timeout_s = 0.3  # for those that come now
        assert customer.chat(stream=stream).outcome == (504, "deadline_exceeded")
        assert check(one_seat, customer, "timeout")["input_tokens"] == 0


@both_ways
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("text", ["break at once", "break"])
def test_an_error_of_the_engine(house: House, text: str, n: int, stream: bool) -> None:
    customer = house.tenant()
    answer = customer.chat(text, stream=stream, n=n)

    assert answer.status == (200 if stream and text == "break" else 500)
    assert (answer.error["code"], answer.is_done) == ("engine_error", False)
    check(house, customer, "error")


@both_ways
@pytest.mark.parametrize("text", ["die at once", "die"])
def test_the_end_of_the_engine(text: str, stream: bool) -> None:
    """It takes everything with it that runs; what comes later is refused. All of it has its row."""
    with open_house() as house:
        other, customer, later = house.tenant(), house.tenant(), house.tenant()
        with other.stream("hold"):
            answer = customer.chat(text, stream=stream)
            assert answer.status == (200 if stream and text == "die" else 503)
            assert answer.error["code"] == "engine_dead"
            check(house, customer, "engine_dead")
            assert check(house, other, "engine_dead")["output_tokens"] > 0
        refused = later.chat(stream=stream)
        assert (refused.status, refused.error["code"]) == (503, "engine_dead")
        check(house, later, "engine_dead")


@both_ways
def test_the_end_of_the_gateway(stream: bool) -> None:
    """What does not end in time is ended; what comes meanwhile is refused."""
    with open_house(http={"drain_timeout_s": 0}) as house:
        running, refused = house.tenant(), house.tenant()
        with running.connection("hold", stream=stream):
            wait_for(lambda: [entry["num_generated_tokens"] for entry in running.at_engine()] == [5])
            assert house.http.post(f"{house.url}/admin/v1/drain", headers=house.gateway.admin).status_code == 202
            assert refused.chat(stream=stream).outcome == (503, "draining")
            assert check(house, running, "rejected")["output_tokens"] == 5
        check(house, refused, "rejected")


def test_the_ledger_has_what_the_engine_has_made(house: House) -> None:
    """Whatever the tests before have done to the gateway, down to the token."""
    made, rows = house.gateway.engine.recorded()["requests"], ledger_rows(house.path)
    requests = {}
    for entry in made:
        requests.setdefault(entry["request_id"].rpartition(":")[0], []).append(entry)
    assert len(made) < 1000, "the engine has forgotten some"
    assert sum(entry["num_generated_tokens"] for entry in made) == sum(row["output_tokens"] for row in rows)
    assert sum(len(entries[0]["token_ids"]) for entries in requests.values()) == sum(row["input_tokens"] for row in rows)
    assert len(requests) == sum(row["admitted_unix_ms"] is not None for row in rows)
    assert len(rows) == len({row["request_id"] for row in rows})
