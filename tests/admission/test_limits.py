"""Every limit admits exactly what it should, counted in memory and in Redis."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from server.admission.admission import FIRST_EXPECTED_TOKENS
from server.admission.limits import Usage, context_room
from server.admission.ticket import Ticket
from server.context import Budget, Tenant
from server.errors import ContextLengthError, InsufficientQuotaError, InvalidRequestError, RateLimitError
from tests.admission.gates import FREE, NOW_S, PAID, USED, Gate, manual_time, memory_gate, redis_gate, tenant
from tests.services.redis import RedisServer, own_redis


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    yield from own_redis()


@pytest.fixture(params=["memory", "redis"])
async def gate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gate]:
    if request.param == "memory":
        yield memory_gate()
        return
    server = request.getfixturevalue("server")
    server.client.flushall()
    manual_time(monkeypatch)
    async with redis_gate(server) as gate:
        yield gate


async def refused(gate: Gate, who: Tenant, *args: int, **options: object) -> RateLimitError:
    """The error of a request that must be refused, and must not have counted."""
    before = await gate.used(who)
    with pytest.raises(RateLimitError) as caught:
        await gate.reserve(who, *args, **options)  # type: ignore[arg-type]
    after = await gate.used(who)
    assert (before["spent"], before["running"]) == (after["spent"], after["running"])
    assert all(now <= then for now, then in zip(after["used"], before["used"], strict=True))  # old counts may have left
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s >= 1
    return caught.value


async def ran_out(gate: Gate, ticket: Ticket) -> tuple[int, InsufficientQuotaError]:
    """Produce token by token until the budget is spent: the tokens, and the error."""
    for num in range(1, 100_000):
        try:
            ticket.produced(num)
        except InsufficientQuotaError as error:
            return num, error
        await gate.told()
    raise AssertionError("the budget never ends")


async def test_requests_per_minute(gate: Gate) -> None:
    acme = tenant(requests_per_minute=3)
    for _ in range(3):
        (await gate.reserve(acme)).settle(USED)
        gate.advance(1)

    error = await refused(gate, acme)
    assert "requests" == error.reason
    assert "your limit is `3` requests per minute: 3 are used or reserved; try again in 58 s" == error.message
    assert 58 == error.retry_after_s
    gate.advance(56.5)
    await refused(gate, acme)
    gate.advance(1.5)
    await gate.reserve(acme)
    await refused(gate, acme)


async def test_tenants_do_not_share(gate: Gate) -> None:
    one, other = tenant("one", requests_per_minute=1), tenant("other", requests_per_minute=1)
    await gate.reserve(one)

    await gate.reserve(other)
    await refused(gate, one)
    await refused(gate, other)


async def test_in_no_minute_more_than_the_limit_however_it_is_hammered(gate: Gate) -> None:
    acme, seed, limit = tenant(requests_per_minute=20), random.Random(1), 20
    admitted: list[float] = []
    for _ in range(300):
        gate.advance(seed.choice([0.0, 0.03, 0.3, 1.1]))
        now_s = gate.clock.now_s
        try:
            (await gate.reserve(acme)).settle(USED)
        except RateLimitError:  # never more than a slot too early
            assert sum(now_s - then_s < 60 + gate.slot_s for then_s in admitted) >= limit
        else:
            admitted.append(now_s)
            assert sum(now_s - then_s <= 60 for then_s in admitted) <= limit
    assert len(admitted) >= 40


async def test_input_tokens_per_minute(gate: Gate) -> None:
    acme = tenant(input_tokens_per_minute=100)
    await gate.reserve(acme, 60)

    error = await refused(gate, acme, 41)
    assert "input_tokens" == error.reason
    assert "60 are used or reserved, this request needs 41" in error.message
    await gate.reserve(acme, 40)
    with pytest.raises(InvalidRequestError, match="the prompt has 101 tokens; you may send 100 input tokens per minute"):
        await gate.reserve(acme, 101)


async def test_uncached_input_tokens_per_minute(gate: Gate) -> None:
    acme = tenant(uncached_input_tokens_per_minute=100)
    ticket = await gate.reserve(acme, 80)
    assert "uncached_input_tokens" == (await refused(gate, acme, 30)).reason

    ticket.prefilled(64)
    second = await gate.reserve(acme, 84)
    await refused(gate, acme, 1)
    ticket.settle(Usage(80, 64, 1))
    second.settle(Usage(84, 83, 1))
    assert 17 == (await gate.used(acme))["used"][2]


async def test_a_prompt_above_the_uncached_limit_passes_alone_and_counts_in_full(gate: Gate) -> None:
    acme = tenant(uncached_input_tokens_per_minute=100)
    ticket = await gate.reserve(acme, 500)
    await refused(gate, acme, 1)

    ticket.settle(Usage(500, 80, 1))
    assert (1, 500, 420, 1) == (await gate.used(acme))["used"]
    assert 61 == (await refused(gate, acme, 1)).retry_after_s


async def test_output_tokens_per_minute(gate: Gate) -> None:
    acme = tenant(output_tokens_per_minute=1000)
    ticket = await gate.reserve(acme, 1, 700)
    assert "output_tokens" == (await refused(gate, acme, 1, 301)).reason

    await gate.reserve(acme, 1, 300)
    ticket.settle(Usage(1, 0, 20))
    await gate.reserve(acme, 1, 680)
    await refused(gate, acme, 1, 1)


async def test_a_cap_above_the_limit_reserves_the_limit(gate: Gate) -> None:
    acme = tenant(output_tokens_per_minute=1000)
    ticket = await gate.reserve(acme, 1, 50_000)
    assert 1000 == (await gate.used(acme))["used"][3]

    for num in range(1, 2500):
        ticket.produced(num)  # goes on, whatever the limit
        if num % 10 == 0:
            await gate.told()
    assert 2499 <= (await gate.used(acme))["used"][3] <= 2499 + 150
    ticket.settle(Usage(1, 0, 2499))
    assert 2499 == (await gate.used(acme))["used"][3]


async def test_output_beyond_the_estimate_counts_when_it_is_made(gate: Gate) -> None:
    acme = tenant(output_tokens_per_minute=100_000)
    ticket = await gate.reserve(acme, 1, 10_000, has_cap=False)
    assert FIRST_EXPECTED_TOKENS == (await gate.used(acme))["used"][3]

    gate.advance(50)
    for num in range(1, 1001):
        ticket.produced(num)
    await gate.told()
    gate.advance(11)  # the reservation has left the window; what came later has not
    ticket.settle(Usage(1, 0, 1000))
    await gate.reserve(acme, 1, 5)
    assert 1000 - FIRST_EXPECTED_TOKENS + 5 == (await gate.used(acme))["used"][3]


async def test_what_answers_usually_take_is_learnt(gate: Gate) -> None:
    acme = tenant()
    for _ in range(60):
        (await gate.reserve(acme, 1, 10_000, has_cap=False)).settle(Usage(1, 0, 2000))
        (await gate.reserve(acme, 1, 10_000)).settle(Usage(1, 0, 1))

    assert 1990 <= gate.admission.expected_tokens(acme) <= 2000
    assert FIRST_EXPECTED_TOKENS == gate.admission.expected_tokens(tenant("other"))


async def test_what_one_answer_takes_is_learnt_and_reserved_for_each(gate: Gate) -> None:
    acme = tenant(output_tokens_per_minute=10**6)
    first = await gate.reserve(acme, 1, 10_000, has_cap=False, num_choices=4)
    assert 4 * FIRST_EXPECTED_TOKENS == (await gate.used(acme))["used"][3]
    first.settle(Usage(1, 0, 4 * FIRST_EXPECTED_TOKENS))
    assert FIRST_EXPECTED_TOKENS == gate.admission.expected_tokens(acme)
    await gate.reserve(acme, 1, 1000, has_cap=False, num_choices=4)
    assert 4 * FIRST_EXPECTED_TOKENS + 1000 == (await gate.used(acme))["used"][3], "never more than there can be"


async def test_concurrent_requests(gate: Gate) -> None:
    acme = tenant(concurrent_requests=2)
    first, second = await gate.reserve(acme), await gate.reserve(acme)

    error = await refused(gate, acme)
    assert "concurrent_requests" == error.reason
    assert 1 == error.retry_after_s
    first.settle(USED)
    third = await gate.reserve(acme)
    await refused(gate, acme)
    first.settle(USED)
    await refused(gate, acme)
    second.settle(USED)
    third.settle(USED)
    assert 0 == (await gate.used(acme))["running"]


async def test_context_room() -> None:
    acme = tenant(max_context_tokens=100)

    assert [None, 1, 99] == [context_room(tenant(), 10**9), context_room(acme, 99), context_room(acme, 1)]
    for num_tokens in (100, 101):
        with pytest.raises(ContextLengthError, match=f"the prompt has {num_tokens} tokens.* may have 100 together"):
            context_room(acme, num_tokens)


@pytest.mark.parametrize(
    ("field", "reason", "wait_s"),
    [("tokens_per_day", "tokens_per_day", 12 * 3600), ("tokens_per_month", "tokens_per_month", 12 * 3600)],
)
async def test_token_budgets(gate: Gate, field: str, reason: str, wait_s: int) -> None:
    acme = tenant(budget=Budget(**{field: 1000}))
    ticket = await gate.reserve(acme, 400, 100)
    await gate.reserve(acme, 400, 50)

    error = await refused(gate, acme, 50, 10)
    assert isinstance(error, InsufficientQuotaError)
    assert (reason, wait_s) == (error.reason, error.retry_after_s)
    assert "your budget is `1000` tokens per" in error.message
    assert "950 are spent or reserved, this request needs 51 at least" in error.message
    ticket.settle(Usage(400, 0, 10))
    await gate.reserve(acme, 50, 10)
    with pytest.raises(InvalidRequestError, match="the prompt has 1000 tokens; you may use 1000 tokens per"):
        await gate.reserve(acme, 1000, 1)
    gate.advance(wait_s - 1)
    await refused(gate, acme, 500, 1)
    gate.advance(1)
    await gate.reserve(acme, 500, 1)


@pytest.mark.parametrize("field", ["nano_usd_per_day", "nano_usd_per_month"])
async def test_budgets_in_money(gate: Gate, field: str) -> None:
    acme = tenant(budget=Budget(**{field: 10_000}))
    ticket = await gate.reserve(acme, 1000, 100, model=PAID)  # 3000 + 1500
    await gate.reserve(acme, 1000, 100, model=PAID)

    error = await refused(gate, acme, 400, 1, model=PAID)
    assert field.replace("nano_", "") == error.reason
    assert "your budget is `0.00001` USD per" in error.message
    assert "0.000009 are spent or reserved, this request needs 0.000001215 at least" in error.message
    await gate.reserve(acme, 100_000, 100_000, model=FREE)
    ticket.prefilled(1000)  # costs 300 instead of 3000
    await gate.reserve(acme, 400, 1, model=PAID)
    ticket.settle(Usage(1000, 1000, 100, PAID.price.nano_usd(1000, 1000, 100)))
    assert 300 + 1500 + 4500 + 1215 == (await gate.used(acme))["spent"][3]


async def test_a_budget_that_does_not_pay_for_all_grants_what_it_pays_for(gate: Gate) -> None:
    acme = tenant(budget=Budget(nano_usd_per_day=3000 + 15 * 40))
    ticket = await gate.reserve(acme, 1000, 500, model=PAID)
    await refused(gate, acme, 1, 1, model=PAID)

    num, error = await ran_out(gate, ticket)
    assert 41 == num
    assert "ran out after 41 tokens of this answer, which are charged: it is `0.0000036` USD per day" in error.message
    assert "the next day begins in 43200 s" in error.message
    ticket.settle(Usage(1000, 0, 41, PAID.price.nano_usd(1000, 0, 41)))
    assert 3600 + 15 == (await gate.used(acme))["spent"][2]
    assert "usd_per_day" == error.reason


async def test_a_budget_of_nothing_is_spent(gate: Gate) -> None:
    acme = tenant(budget=Budget(nano_usd_per_day=0))

    assert isinstance(await refused(gate, acme, 1, 1, model=PAID), InsufficientQuotaError)
    await gate.reserve(acme, 1, 1, model=FREE)
    with pytest.raises(
        InvalidRequestError,
        match=r"a prompt of \d+ tokens and one token of an answer cost up to 0.000000018 USD; you may spend 0.000000017 USD per month",
    ):
        await gate.reserve(tenant(budget=Budget(nano_usd_per_month=17)), 1, 1, model=PAID)


async def test_a_running_answer_gets_more_of_the_budget_as_it_grows(gate: Gate) -> None:
    acme = tenant(budget=Budget(tokens_per_day=2000))
    growing = await gate.reserve(acme, 1, 100_000, has_cap=False)
    waiting = await gate.reserve(acme, 1, 800)

    assert 1199 == (await ran_out(gate, growing))[0]
    growing.settle(Usage(1, 0, 1199))
    waiting.settle(Usage(1, 0, 799))
    assert 2000 == (await gate.used(acme))["spent"][0]


async def test_what_others_give_back_lets_an_answer_go_on(gate: Gate) -> None:
    acme = tenant(budget=Budget(tokens_per_day=2000))
    other = await gate.reserve(acme, 1, 1500)
    growing = await gate.reserve(acme, 1, 100_000, has_cap=False)
    growing.produced(200)
    other.settle(Usage(1, 0, 0))
    await gate.told()

    for num in range(201, 1900):
        growing.produced(num)
        await gate.told()


async def test_limits_that_change_hold_from_the_next_decision_on(gate: Gate) -> None:
    first = await gate.reserve(tenant(requests_per_minute=5))
    second = await gate.reserve(tenant(requests_per_minute=5))

    await refused(gate, tenant(requests_per_minute=1))
    second.produced(100)
    await gate.reserve(tenant(requests_per_minute=3))
    await refused(gate, tenant(concurrent_requests=1))
    first.settle(USED)
    second.settle(USED)
    await gate.reserve(tenant(concurrent_requests=2))


async def test_what_never_reached_the_engine_gives_everything_back(gate: Gate) -> None:
    acme = tenant(requests_per_minute=1, budget=Budget(tokens_per_day=1000))
    ticket = await gate.reserve(acme, 100, 100, model=PAID)

    ticket.settle(Usage())
    ticket.settle(USED)
    assert {"used": (0, 0, 0, 0), "spent": (0, 0, 0, 0), "running": 0} == await gate.used(acme)
    await gate.reserve(acme)


async def test_of_several_reasons_the_longest_is_told(gate: Gate) -> None:
    acme = tenant(requests_per_minute=1, concurrent_requests=1, input_tokens_per_minute=100, budget=Budget(tokens_per_day=120))
    await gate.reserve(acme, 100, 1)

    assert "tokens_per_day" == (await refused(gate, acme, 100, 1)).reason
    gate.set_time(NOW_S + 12 * 3600 - 5)
    ticket = await gate.reserve(tenant(requests_per_minute=1), 100, 1)
    error = await refused(gate, acme, 100, 1)
    assert ("requests", 61) == (error.reason, error.retry_after_s)
    ticket.settle(USED)


async def test_a_day_ends_and_what_it_had_reserved_is_settled_with_it(gate: Gate) -> None:
    acme = tenant(budget=Budget(tokens_per_day=1000))
    ticket = await gate.reserve(acme, 10, 900)
    gate.advance(12 * 3600)  # which is another month, too
    second = await gate.reserve(acme, 10, 900)

    ticket.settle(Usage(10, 0, 100))
    second.settle(Usage(10, 0, 50))
    assert (60, 60, 0, 0) == (await gate.used(acme))["spent"]
    gate.set_time(NOW_S)
    await refused(gate, tenant(budget=Budget(tokens_per_day=115)), 5, 1)
    await gate.reserve(tenant(budget=Budget(tokens_per_day=116)), 5, 1)


async def test_headers(gate: Gate) -> None:
    acme = tenant(requests_per_minute=10, input_tokens_per_minute=1000, output_tokens_per_minute=100)
    ticket = await gate.reserve(acme, 100, 20)

    assert {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "1m1s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "80",
        "x-ratelimit-reset-tokens": "1m1s",
    } == ticket.headers
    assert ticket.headers == gate.admission.headers(acme)
    assert {} == (await gate.reserve(tenant("free"))).headers


async def test_headers_of_a_budget(gate: Gate) -> None:
    ticket = await gate.reserve(tenant(budget=Budget(tokens_per_day=1000, tokens_per_month=900)), 100, 20)

    assert ["900", "780", "12h0m0s"] == list(ticket.headers.values())


async def test_how_much_of_a_budget_is_left(gate: Gate) -> None:
    acme = tenant(budget=Budget(tokens_per_day=1000, nano_usd_per_month=9000))
    assert 1.0 == gate.admission.budget_remaining_ratio(acme)
    await gate.reserve(acme, 1000 - 300, 100, model=PAID)

    assert 0.2 == gate.admission.budget_remaining_ratio(acme)
    assert gate.admission.budget_remaining_ratio(tenant("other")) is None
    gate.advance(12 * 3600)
    assert 1.0 == gate.admission.budget_remaining_ratio(acme)


async def test_what_the_ledger_says_counts(gate: Gate) -> None:
    acme = tenant(budget=Budget(tokens_per_day=1000))
    gate.store.seed({"acme": (990, 0, 5000, 7)})
    if gate.server is not None:
        async with redis_gate(gate.server, gate.clock) as seeded:
            seeded.store.seed({"acme": (990, 0, 5000, 7)})
            await seeded.reserve(tenant("other"))
            await refused(seeded, acme, 10, 1)
        async with redis_gate(gate.server, gate.clock) as again:
            again.store.seed({"acme": (999, 0, 5000, 7)})
            await again.reserve(acme, 9, 1)
            assert (1000, 5010, 0, 7) == (await again.used(acme))["spent"]
        return
    await refused(gate, acme, 10, 1)
    await gate.reserve(acme, 9, 1)


async def test_a_precheck_counts_nothing_and_raises_what_is_certain(gate: Gate) -> None:
    acme = tenant(requests_per_minute=2, budget=Budget(tokens_per_day=100, nano_usd_per_day=10_000))
    gate.admission.precheck(acme)
    (await gate.reserve(acme, 50, 1)).settle(Usage(50, 0, 50, 9_999))
    gate.admission.precheck(tenant())
    if gate.server is not None:
        gate.admission.precheck(acme)  # would have to ask
        return

    with pytest.raises(InsufficientQuotaError):
        gate.admission.precheck(acme)
    with pytest.raises(InsufficientQuotaError):
        gate.admission.precheck(tenant(budget=Budget(nano_usd_per_day=10_000)), PAID)
    gate.admission.precheck(tenant(budget=Budget(nano_usd_per_day=10_000)))
    with pytest.raises(RateLimitError, match="your limit is `1` requests"):
        gate.admission.precheck(tenant(requests_per_minute=1))


async def test_days_and_months_are_those_of_the_calendar(gate: Gate) -> None:
    pick, acme = random.Random(1), tenant()
    edges = [datetime(year, month, 1, tzinfo=UTC) for year in (2027, 2028, 2100) for month in (1, 2, 3, 12)]
    times = sorted(
        [int(edge.timestamp()) + shift for edge in edges for shift in (-1, 0)] + pick.sample(range(int(NOW_S), 2**32), 20)
    )
    for unix_s in times:
        gate.set_time(float(unix_s))
        (await gate.reserve(acme)).settle(USED)
        now = datetime.fromtimestamp(unix_s, UTC)
        day_end = now.replace(hour=0, minute=0, second=0) + timedelta(days=1)
        month_end = (now.replace(day=1, hour=0, minute=0, second=0) + timedelta(days=32)).replace(day=1)
        standing = gate.store.standing(acme)
        assert standing is not None
        assert (day_end.timestamp(), month_end.timestamp()) == standing.ends_s
