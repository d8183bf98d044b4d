"""What a request holds is freed when it ends, however that is: a prompt of a million tokens does not wait for the garbage collector."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.tracing.conftest import SCRIPT, WEATHER
from tests.wire.customers import Customer, House, open_house, wait_for

NUM_REQUESTS = 4
TIMEOUT_S = 0.3
Ask = Callable[[Customer, bool], Any]


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with open_house(SCRIPT, admission={"request_timeout_s": TIMEOUT_S}) as house:
        yield house


def leave(text: str, *, cut: int = 0) -> Ask:
    """Go away once the engine has all that it will answer, or in the middle of the request."""

    def ask(customer: Customer, stream: bool) -> None:
        with customer.connection(text, stream=stream, cut=cut) as connection:
            if stream and text == "hold":
                while b'"content":"H' not in connection.recv(4096):
                    pass

    return ask


def chat(text: str = "hi", **fields: Any) -> Ask:
    return lambda customer, stream: customer.chat(text, stream=stream, **fields)


def wrong_key(customer: Customer, stream: bool) -> None:
    Customer(customer.http, customer.url, "nobody", "k3gw-wrong-key").chat(stream=stream)


ENDINGS: dict[str, Ask] = {
    "stop": chat(),
    "length": chat(max_tokens=7),
    "a stop string": chat(stop=["said"]),
    "tool calls": chat("call", tools=[WEATHER]),
    "three choices": chat(n=3),
    "logprobs": chat(logprobs=True),
    "bad field": chat(max_tokens=-1),
    "bad schema": chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": 3}}}]),
    "no such model": chat(model="none"),
    "too long": chat(max_tokens=10_000_000),
    "wrong key": wrong_key,
    "client leaves": leave("hold"),
    "client leaves at once": leave("hi"),
    "client leaves while it asks": leave("hi", cut=5),
    "engine error at once": chat("break at once"),
    "engine error": chat("break"),
    "takes too long": chat("silent"),
    "takes too long to end": chat("hold"),
    "limited": chat(),
    "no budget": chat(),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "limited": {"limits": {"requests_per_minute": 1}},
    "no budget": {"budget": {"tokens_per_day": 1}},
}
"""Of the tenant that asks."""


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", ENDINGS)
def test_nothing_waits_for_the_collector(house: House, name: str, stream: bool) -> None:
    check(house, house.tenant(**SETTINGS.get(name, {})), ENDINGS[name], stream)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_nothing_of_who_waits_in_vain_does(stream: bool) -> None:
    with open_house(SCRIPT, seats=1, admission={"queue_timeout_s": 0.2}) as house, house.tenant().stream("hold"):
        check(house, house.tenant(), chat(), stream, num_open=1)


def check(house: House, customer: Customer, ask: Ask, stream: bool, *, num_open: int = 0) -> None:
    answers = house.gateway.gateway.answers
    ask(customer, stream)  # what is made once
    house.http.get(f"{house.url}/health", headers={"connection": "close"})
    wait_for(lambda: answers.num_open == num_open)
    gc.collect()
    gc.freeze()  # all else that there is need not be looked at
    gc.disable()
    try:
        for _ in range(NUM_REQUESTS):
            ask(customer, stream)
        wait_for(lambda: answers.num_open == num_open == house.gateway.gateway.engine.num_unfinished)
        house.http.get(f"{house.url}/health", headers={"connection": "close"})
        found = garbage()
    finally:
        gc.enable()
        gc.unfreeze()
    assert not found


def garbage() -> Counter[str]:
    """Of the gateway's classes, those whose objects only the collector can free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        kinds = (type(each) for each in gc.garbage)
        return Counter(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds if kind.__module__.startswith("server."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()
