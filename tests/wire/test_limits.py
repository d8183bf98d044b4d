"""Every limit, over HTTP: what it admits, what the headers say, and that a refusal costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from tests.services.redis import RedisServer, own_redis
from tests.wire.customers import END, Answer, Customer, House, make_house, wait_for

SCRIPT = [
    {"when": {"contains": "keep"}, "cached_tokens": 200, "reply": [{"text": "a"}, "hang"]},
    {"when": {"contains": "hold"}, "reply": [{"text": "a"}, "hang"]},
    {"when": {"contains": "cached"}, "cached_tokens": 200, "reply": [{"text": "yes"}, *END]},
    {
        "when": {"contains": "long"},
        "tokens_per_step": 8,
        "reply": [{"repeat": {"times": 1000, "of": [{"text": "lorem "}]}}, *END],
    },
    {"reply": [{"text": "yes"}, *END]},
]
REFUSED = (429, "rate_limit_exceeded")
ADMITTED = (200, None)
LONG = "cached " * 40
"""More tokens than the script says are cached."""
pytestmark = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    yield from own_redis()


@pytest.fixture(scope="module", params=["memory", "redis"])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    yield from make_house(SCRIPT, request.getfixturevalue("redis") if request.param == "redis" else None)


@pytest.fixture(scope="module")
def sizes(house: House) -> Callable[[str], tuple[int, int, int]]:
    """Text -> tokens of its prompt, of them cached, and of its answer, by the engine's counts."""
    free = house.tenant()

    def sizes(text: str) -> tuple[int, int, int]:
        assert free.chat(text).outcome == ADMITTED
        entry = free.at_engine()[-1]
        return len(entry["token_ids"]), entry["num_cached_tokens"], entry["num_generated_tokens"]

    return sizes


def outcomes(customer: Customer, num: int, text: str = "hi", **fields: Any) -> list[tuple[int, str | None]]:
    return [customer.chat(text, **fields).outcome for _ in range(num)]


def check_refused(house: House, customer: Customer, answer: Answer, num_rows: int) -> None:
    """That it was refused as it should be, and nothing but a row in the ledger came of it."""
    assert answer.outcome == REFUSED
    assert answer.error["type"] == "rate_limit_error"
    assert answer.retry_after_s >= 1
    assert len(customer.at_engine()) == num_rows - 1
    row = house.rows(customer, num_rows)[-1]
    assert (row["outcome"], row["input_tokens"], row["output_tokens"], row["cost_nano_usd"]) == ("limited", 0, 0, 0)
    assert row["admitted_unix_ms"] is None


def test_requests_per_minute(house: House, stream: bool) -> None:
    customer = house.tenant(limits={"requests_per_minute": 3})
    answers = [customer.chat(stream=stream) for _ in range(3)]

    assert [answer.outcome for answer in answers] == [ADMITTED] * 3
    assert [answer.limits("requests") for answer in answers] == [(3, 2), (3, 1), (3, 0)]
    assert all(60 <= answer.reset_s("requests") <= 61 for answer in answers)
    refused = customer.chat(stream=stream)
    assert refused.limits("requests") == (3, 0)
    assert refused.retry_after_s in (60, 61)
    assert "`3` requests per minute" in refused.error["message"]
    check_refused(house, customer, refused, 4)
    house.advance(refused.retry_after_s)
    assert outcomes(customer, 4, stream=stream) == [ADMITTED] * 3 + [REFUSED]


def test_input_tokens_per_minute(house: House, stream: bool, sizes: Any) -> None:
    num_input = sizes("hi")[0]
    customer = house.tenant(limits={"input_tokens_per_minute": 3 * num_input + num_input - 1})
    answers = [customer.chat(stream=stream) for _ in range(4)]

    assert [answer.outcome for answer in answers] == [ADMITTED] * 3 + [REFUSED]
    limit = 4 * num_input - 1
    left = [limit - num * num_input for num in (1, 2, 3, 3)]
    assert [answer.limits("tokens") for answer in answers] == [(limit, num) for num in left]
    check_refused(house, customer, answers[3], 4)
    house.advance(answers[3].retry_after_s)
    assert outcomes(customer, 4, stream=stream) == [ADMITTED] * 3 + [REFUSED]


def test_a_refusal_leaves_room_for_a_request_that_fits(house: House, stream: bool, sizes: Any) -> None:
    small, large = sizes("hi")[0], sizes("hi" * 40)[0]
    customer = house.tenant(limits={"input_tokens_per_minute": large + small, "requests_per_minute": 3})

    assert outcomes(customer, 1, "hi" * 40, stream=stream) == [ADMITTED]
    assert outcomes(customer, 5, "hi" * 40, stream=stream) == [REFUSED] * 5
    fitting = customer.chat(stream=stream)
    assert fitting.outcome == ADMITTED
    assert (fitting.limits("tokens"), fitting.limits("requests")) == ((large + small, 0), (3, 1))


def test_uncached_input_tokens_per_minute(house: House, stream: bool, sizes: Any) -> None:
    """A whole prompt has to have room; what was cached of it is given back."""
    num_input, num_cached, _ = sizes(LONG)
    num_uncached = num_input - num_cached
    assert 0 < num_uncached < num_input
    limit = 3 * num_uncached + num_input
    customer = house.tenant(limits={"uncached_input_tokens_per_minute": limit})
    answers = [customer.chat(LONG, stream=stream) for _ in range(5)]

    assert [answer.outcome for answer in answers] == [ADMITTED] * 4 + [REFUSED]
    left = [limit - num * num_uncached - num_input for num in range(4)] + [limit - 4 * num_uncached]
    assert [answer.limits("tokens") for answer in answers] == [(limit, num) for num in left]
    check_refused(house, customer, answers[4], 5)


def test_what_was_cached_is_given_back_while_the_answer_goes_on(house: House, stream: bool, sizes: Any) -> None:
    num_input, num_cached, _ = sizes(LONG)
    customer = house.tenant(limits={"uncached_input_tokens_per_minute": 2 * num_input - num_cached})
    with customer.stream("keep" + LONG[4:]):
        assert outcomes(customer, 2, LONG, stream=stream) == [ADMITTED, REFUSED]


def test_output_tokens_per_minute(house: House, stream: bool, sizes: Any) -> None:
    """The client's cap has to have room; what the answer does not take is given back."""
    num_output, cap = sizes("hi")[2], 50
    limit = 3 * num_output + cap
    customer = house.tenant(limits={"output_tokens_per_minute": limit})
    answers = [customer.chat(stream=stream, max_tokens=cap) for _ in range(5)]

    assert [answer.outcome for answer in answers] == [ADMITTED] * 4 + [REFUSED]
    left = [limit - num * num_output - cap for num in range(4)] + [limit - 4 * num_output]
    assert [answer.limits("tokens") for answer in answers] == [(limit, num) for num in left]
    check_refused(house, customer, answers[4], 5)
    house.advance(answers[4].retry_after_s)
    assert outcomes(customer, 1, stream=stream, max_tokens=cap) == [ADMITTED]


def test_choices_are_counted_together(house: House, stream: bool, sizes: Any) -> None:
    num_output, cap = sizes("hi")[2], 50
    customer = house.tenant(limits={"output_tokens_per_minute": 3 * cap + 3 * num_output - 1, "requests_per_minute": 9})

    assert outcomes(customer, 2, stream=stream, max_tokens=cap, n=3) == [ADMITTED, REFUSED]
    answer = customer.chat(stream=stream, max_tokens=cap)
    assert answer.outcome == ADMITTED
    assert answer.limits("requests") == (9, 7)


def test_an_answer_without_a_cap_goes_on_and_counts_in_full(house: House, stream: bool, sizes: Any) -> None:
    num_output = sizes("long")[2]
    customer = house.tenant(limits={"output_tokens_per_minute": 1000})
    answer = customer.chat("long", stream=stream)

    assert (answer.outcome, answer.finish_reason) == (ADMITTED, "stop")
    assert house.rows(customer, 1)[0]["output_tokens"] == num_output > 1000
    refused = customer.chat(stream=stream, max_tokens=1)
    assert refused.limits("tokens") == (1000, 0)
    check_refused(house, customer, refused, 2)


def test_concurrent_requests(house: House, stream: bool) -> None:
    customer = house.tenant(limits={"concurrent_requests": 2})
    with customer.stream("hold"):
        with customer.stream("hold"):
            refused = [customer.chat(stream=stream) for _ in range(3)]
        wait_for(lambda: customer.chat(stream=stream).outcome, lambda outcome: outcome == ADMITTED)
        assert outcomes(customer, 2, stream=stream) == [ADMITTED] * 2
    assert [answer.outcome for answer in refused] == [REFUSED] * 3
    assert all(answer.retry_after_s >= 1 for answer in refused)
    assert "`2` of your requests may run at once" in refused[0].error["message"]


def test_context_length(house: House, stream: bool, sizes: Any) -> None:
    num_input = sizes("long")[0]
    customer = house.tenant(limits={"max_context_tokens": num_input + 5})
    cut = customer.chat("long", stream=stream)
    lowered = customer.chat("long", stream=stream, max_tokens=4000)
    none_left = [customer.chat("long" + "x" * num, stream=stream) for num in (5, 6)]

    assert (cut.finish_reason, lowered.finish_reason) == ("length", "length")
    assert [row["output_tokens"] for row in house.rows(customer, 4)] == [5, 5, 0, 0]
    assert [answer.outcome for answer in none_left] == [(400, "context_length_exceeded")] * 2
    assert [row["outcome"] for row in house.rows(customer, 4)] == ["finished", "finished", "invalid", "invalid"]


def test_what_no_minute_has_room_for_is_the_requests_fault(house: House, stream: bool, sizes: Any) -> None:
    num_input = sizes("hi")[0]
    customer = house.tenant(limits={"input_tokens_per_minute": num_input - 1})
    answer = customer.chat(stream=stream)

    assert answer.outcome == (400, "request_exceeds_limit")
    assert f"{num_input} tokens" in answer.error["message"]


def test_several_limits_at_once(house: House, stream: bool, sizes: Any) -> None:
    """The tightest is told, and all of them hold."""
    num_input = sizes("hi")[0]
    limits = {"requests_per_minute": 5, "input_tokens_per_minute": 100 * num_input, "output_tokens_per_minute": 10_000}
    customer = house.tenant(limits=limits)
    answer = customer.chat(stream=stream, max_tokens=9_000)

    assert answer.limits("requests") == (5, 4)
    assert answer.limits("tokens") == (10_000, 1_000)
    assert customer.chat(stream=stream).limits("tokens")[0] in (10_000, 100 * num_input)
    assert outcomes(customer, 4, stream=stream) == [ADMITTED] * 3 + [REFUSED]


def test_who_has_no_limits_is_told_none(house: House, stream: bool) -> None:
    headers = house.tenant().chat(stream=stream).headers

    assert [name for name in headers if name.startswith(("x-ratelimit", "retry-after"))] == []


def test_what_openais_client_raises(house: House, stream: bool) -> None:
    customer = house.tenant(limits={"requests_per_minute": 1})
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key=customer.key, max_retries=0) as client:
        admitted = client.chat.completions.with_raw_response.create(**_known(customer), stream=stream)
        assert admitted.headers["x-ratelimit-remaining-requests"] == "0"
        with pytest.raises(openai.RateLimitError) as raised:
            client.chat.completions.create(**_known(customer), stream=stream)

    assert (raised.value.code, raised.value.type) == ("rate_limit_exceeded", "rate_limit_error")
    assert raised.value.response.headers["x-ratelimit-remaining-requests"] == "0"
    assert 0 < int(raised.value.response.headers["retry-after"]) <= 61


def test_what_is_refused_before_it_is_looked_at_has_the_headers_too(house: House, stream: bool) -> None:
    """A tenant over its limit is told so, whatever it sends; what is no request at all is a 400."""
    customer = house.tenant(limits={"requests_per_minute": 1})
    assert outcomes(customer, 1, stream=stream) == [ADMITTED]
    url = f"{house.url}/v1/chat/completions"
    malformed = customer.http.post(url, content=b"{", headers=customer.headers)

    assert malformed.status_code == 400
    assert customer.chat("x" * 100_000, stream=stream).limits("requests") == (1, 0)


def _known(customer: Customer) -> Any:
    """A request as openai-python takes it: what it does not know in `extra_body`."""
    body = customer.body("hi")
    thinking = body.pop("thinking")
    return {**body, "extra_body": {"thinking": thinking}}
