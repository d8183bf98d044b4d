"""However a request ends, the ledger has one row of it, with the engine's own counts and what they cost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.wire.customers import END, NANO, House, ledger_rows, open_house, wait_for
from tests.wire.row_checks import check_row

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


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with open_house(SCRIPT) as house:
        yield house


@pytest.fixture
def one_seat() -> Iterator[House]:
    with open_house(SCRIPT, seats=1) as house:
        yield house


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
    row = check_row(house, customer, "finished", finish_reason)
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


@both_ways
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("text", ["silent", "hold"])
def test_a_client_that_leaves(house: House, text: str, n: int, stream: bool) -> None:
    """Before the first token, and in the middle."""
    customer = house.tenant()
    with customer.connection(text, stream=stream, n=n):
        wait_for(lambda: [entry["num_generated_tokens"] for entry in customer.at_engine()] == [0 if text == "silent" else 5] * n)
    row = check_row(house, customer, "cancelled")
    assert row["input_tokens"] > 0


@both_ways
def test_a_client_that_leaves_before_it_has_sent_all(house: House, stream: bool) -> None:
    customer = house.tenant()
    with customer.connection(cut=5, stream=stream):
        wait_for(lambda: house.gateway.gateway.answers.num_open)
    check_row(house, customer, "cancelled")


@both_ways
def test_a_client_that_leaves_while_its_prompt_is_rendered(stream: bool) -> None:
    with open_house(SCRIPT) as house:
        generator, begun = house.gateway.gateway.generator(), threading.Event()

        async def prepare(job: Any) -> Any:
            begun.set()
            await asyncio.Event().wait()

        generator.prepare = prepare  # type: ignore[method-assign]
        customer = house.tenant()
        with customer.connection(stream=stream):
            assert begun.wait(15)
        check_row(house, customer, "cancelled")


@both_ways
def test_a_client_that_leaves_the_queue(one_seat: House, stream: bool) -> None:
    first, customer = one_seat.tenant(), one_seat.tenant()
    with first.stream("hold"):
        with customer.connection(stream=stream):
            wait_for(lambda: one_seat.gateway.gateway.queue.num_queued)
        row = check_row(one_seat, customer, "cancelled")
        assert (row["input_tokens"], row["admitted_unix_ms"]) == (0, None)
    check_row(one_seat, first, "cancelled")
    assert first.chat().status == 200


@both_ways
def test_waiting_for_too_long(stream: bool) -> None:
    with open_house(SCRIPT, seats=1, admission={"queue_timeout_s": 0.2}) as house:
        first, customer = house.tenant(), house.tenant()
        with first.stream("hold"):
            answer = customer.chat(stream=stream)
            assert (answer.status, answer.error["code"]) == (503, "queue_timeout")
            assert answer.retry_after_s >= 1
            check_row(house, customer, "rejected")


@both_ways
@pytest.mark.parametrize("text", ["silent", "hold"])
def test_taking_too_long(text: str, stream: bool) -> None:
    with open_house(SCRIPT, admission={"request_timeout_s": 0.4}) as house:
        customer = house.tenant()
        answer = customer.chat(text, stream=stream)

        assert answer.status == (200 if stream and text == "hold" else 504)
        assert (answer.error["code"], answer.is_done) == ("deadline_exceeded", False)
        row = check_row(house, customer, "timeout")
        assert row["output_tokens"] == (5 if text == "hold" else 0)


@both_ways
def test_taking_too_long_in_the_queue(one_seat: House, stream: bool) -> None:
    first, customer = one_seat.tenant(), one_seat.tenant()
    with first.stream("hold"):
        one_seat.gateway.gateway.answers.timeout_s = 0.3  # for those that come now
        assert customer.chat(stream=stream).outcome == (504, "deadline_exceeded")
        assert check_row(one_seat, customer, "timeout")["input_tokens"] == 0


@both_ways
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("text", ["break at once", "break"])
def test_an_error_of_the_engine(house: House, text: str, n: int, stream: bool) -> None:
    customer = house.tenant()
    answer = customer.chat(text, stream=stream, n=n)

    assert answer.status == (200 if stream and text == "break" else 500)
    assert (answer.error["code"], answer.is_done) == ("engine_error", False)
    check_row(house, customer, "error")


@both_ways
@pytest.mark.parametrize("text", ["die at once", "die"])
def test_the_end_of_the_engine(text: str, stream: bool) -> None:
    """It takes everything with it that runs; what comes later is refused. All of it has its row."""
    with open_house(SCRIPT) as house:
        other, customer, later = house.tenant(), house.tenant(), house.tenant()
        with other.stream("hold"):
            answer = customer.chat(text, stream=stream)
            assert answer.status == (200 if stream and text == "die" else 503)
            assert answer.error["code"] == "engine_dead"
            check_row(house, customer, "engine_dead")
            assert check_row(house, other, "engine_dead")["output_tokens"] > 0
        refused = later.chat(stream=stream)
        assert (refused.status, refused.error["code"]) == (503, "engine_dead")
        check_row(house, later, "engine_dead")


@both_ways
def test_the_end_of_the_gateway(stream: bool) -> None:
    """What does not end in time is ended; what comes meanwhile is refused."""
    with open_house(SCRIPT, http={"drain_timeout_s": 0}) as house:
        running, refused = house.tenant(), house.tenant()
        with running.connection("hold", stream=stream):
            wait_for(lambda: [entry["num_generated_tokens"] for entry in running.at_engine()] == [5])
            assert house.http.post(f"{house.url}/admin/v1/drain", headers=house.gateway.admin).status_code == 202
            assert refused.chat(stream=stream).outcome == (503, "draining")
            assert check_row(house, running, "rejected")["output_tokens"] == 5
        check_row(house, refused, "rejected")


async def test_the_ledger_has_what_the_engine_has_made(house: House) -> None:
    """Whatever becomes of many requests at once, many of them left at a random moment: down to the token."""
    customer, chance = house.tenant(), random.Random(7)

    async def ask(text: str, patience_s: float, **fields: Any) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                body = customer.body(text, **fields)
                await client.post(f"{house.url}/v1/chat/completions", json=body, headers=customer.headers)

    async with httpx.AsyncClient(timeout=60) as client, asyncio.TaskGroup() as tasks:
        for _ in range(60):
            text, n = chance.choice(["hi", "break", "hold", "silent", "a long prompt " * 20]), chance.choice([1, 1, 3])
            tasks.create_task(ask(text, chance.random() * 0.4, stream=chance.random() < 0.5, n=n))
        for text in ("hi", "break"):  # however slow the machine is, some come to an end of their own
            tasks.create_task(ask(text, 60, stream=True))
    wait_for(lambda: all(entry["end"] for entry in customer.at_engine()))
    requests: dict[str, list[dict[str, Any]]] = {}
    for entry in customer.at_engine():
        requests.setdefault(entry["request_id"].rpartition(":")[0], []).append(entry)

    def admitted() -> list[dict[str, Any]]:
        return [row for row in ledger_rows(house.path, customer.name) if row["admitted_unix_ms"] is not None]

    rows = {f"{customer.name}:{row['request_id']}": row for row in wait_for(admitted, lambda rows: len(rows) >= len(requests))}
    assert requests.keys() == rows.keys()
    for name, entries in requests.items():
        row = rows[name]
        assert sum(entry["num_generated_tokens"] for entry in entries) == row["output_tokens"]
        assert (
            len(entries[0]["token_ids"]),
            row["cached_tokens"] in {entry["num_cached_tokens"] for entry in entries} | {0},
        ) == (
            row["input_tokens"],
            True,
        )
    assert {"finished", "cancelled", "error"} == {row["outcome"] for row in rows.values()}
