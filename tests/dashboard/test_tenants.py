"""The table of tenants: what a row says, which rows there are, and in which order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.admission.limits import Estimate, Usage
from server.context import Budget, Limits, RequestContext, Tenant
from server.dashboard.tenants import SORTS
from server.models import Price
from tests.dashboard.tables import Still

Make = Callable[..., Still]
ACME = Tenant(
    "acme",
    weight=3,
    limits=Limits(requests_per_minute=10, input_tokens_per_minute=1000, concurrent_requests=2),
    budget=Budget(tokens_per_day=1000, tokens_per_month=100_000),
)
BETA = Tenant("beta")


async def test_limits_and_budgets_are_as_admission_holds_them(still: Make) -> None:
    gateway = still(ACME, BETA)
    model = gateway.gateway.models.models[0]
    ticket = await gateway.gateway.admission.reserve(RequestContext("r", ACME), model, Estimate(100, 50, has_cap=True))
    row = gateway.row("acme")
    assert ([1, 10], [100, 1000], [50, None]) == (
        row["requests_per_minute"], row["input_tokens_per_minute"], row["output_tokens_per_minute"],
    )  # fmt: skip
    assert (1, 2) == (row["running"], row["concurrent_requests"])
    assert {"tokens_per_day": [150, 1000], "tokens_per_month": [150, 100_000]} == row["budget"]
    assert 0.85 == row["budget_left"] == gateway.gateway.admission.budget_remaining_ratio(ACME)
    ticket.settle(Usage(num_input_tokens=100, num_output_tokens=20))
    row = gateway.row("acme")
    assert (0, [120, 1000]) == (row["running"], row["budget"]["tokens_per_day"])
    gateway.clock.advance(62)
    assert [0, 10] == gateway.row("acme")["requests_per_minute"]
    assert {} == gateway.row("beta")["budget"]
    assert gateway.row("beta")["budget_left"] is None


def test_counts_are_since_the_start_and_know_what_is_under_way(still: Make) -> None:
    gateway = still(ACME, BETA)
    gateway.end(gateway.begin("acme", 100, 40, 64))
    gateway.end(gateway.begin("acme", 100, 2), "cancelled")
    gateway.refuse("acme", "requests")
    running = gateway.begin("acme", 200, 8)
    expected = {
        "requests": 3,
        "refused": 1,
        "input_tokens": 400,
        "cached_tokens": 64,
        "output_tokens": 50,
        "cache_hit_ratio": 0.16,
    }
    row = gateway.row("acme")
    assert expected == {name: row[name] for name in expected}
    gateway.end(running)
    row = gateway.row("acme")
    assert {**expected, "requests": 4} == {name: row[name] for name in expected}, "nothing is counted twice"
    assert (0, None) == (gateway.row("beta")["requests"], gateway.row("beta")["cache_hit_ratio"])


def test_traffic_is_of_the_last_minute(still: Make) -> None:
    gateway = still(ACME, BETA)
    gateway.end(gateway.begin("acme", 60_000, 60_000))
    assert gateway.row("acme")["input_tokens_per_s"] is None
    gateway.go(120)
    gateway.end(gateway.begin("acme", 600, 1200))
    gateway.go(10)
    table = gateway.table()
    row = gateway.row("acme")
    assert (600, 1200) == pytest.approx(
        (row["input_tokens_per_s"] * table["window_s"], row["output_tokens_per_s"] * table["window_s"]), rel=1e-3
    )
    assert 55 <= table["window_s"] <= 75
    gateway.go(80)
    assert 0 == gateway.row("acme")["output_tokens_per_s"]


async def test_the_share_of_service_stands_beside_the_fair_one(still: Make) -> None:
    gateway = still(ACME, BETA, Tenant("idle", weight=50))
    queue = gateway.gateway.queue
    assert queue is not None
    gateway.go(10)
    for tenant, num_output in ((ACME, 60), (BETA, 20)):
        (place,) = queue.join(tenant, Price(), num_places=1, num_input_tokens=100, num_output_tokens=100)
        await place.wait()
        place.produced(num_output)
        place.leave()
    shares = {name: (gateway.row(name)["service_share"], gateway.row(name)["fair_share"]) for name in ("acme", "beta", "idle")}
    assert {"acme": (2 / 3, 0.75), "beta": (1 / 3, 0.25), "idle": (0, None)} == {
        name: (pytest.approx(share, abs=1e-4), fair) for name, (share, fair) in shares.items()
    }


async def test_who_waits_and_gets_nothing_has_its_part_of_the_weights(still: Make) -> None:
    gateway = still(ACME, BETA, Tenant("idle", weight=50), seats=1)
    queue = gateway.gateway.queue
    assert queue is not None
    gateway.go(10)
    places = [
        queue.join(tenant, Price(), num_places=1, num_input_tokens=100, num_output_tokens=100)[0] for tenant in (ACME, BETA)
    ]
    await places[0].wait()
    places[0].produced(10)
    rows = {name: gateway.row(name) for name in ("acme", "beta", "idle")}
    assert {"acme": (0, 1.0, 0.75), "beta": (1, 0.0, 0.25), "idle": (0, 0.0, None)} == {
        name: (row["queued"], row["service_share"], row["fair_share"]) for name, row in rows.items()
    }
    for place in places:
        place.leave()


async def test_places_in_the_queue(still: Make) -> None:
    gateway = still(ACME, BETA, seats=1)
    queue = gateway.gateway.queue
    assert queue is not None
    places = queue.join(BETA, Price(), num_places=1, num_input_tokens=1, num_output_tokens=1)
    places += queue.join(ACME, Price(), num_places=3, num_input_tokens=1, num_output_tokens=1)
    assert (3, 0) == (gateway.row("acme")["queued"], gateway.row("beta")["queued"])
    assert "acme" == gateway.names(sort="queued")[0]
    for place in places:
        place.leave()
    assert 0 == gateway.row("acme")["queued"]


def test_every_tenant_is_on_one_of_the_pages(still: Make) -> None:
    gateway = still(*(Tenant(f"tenant-{number:03}") for number in range(57)))
    pages = [gateway.table(sort="name", descending=False, page=page, num_rows=25) for page in range(3)]
    names = [row["name"] for table in pages for row in table["rows"]]

    assert [f"tenant-{number:03}" for number in range(57)] == names
    assert {(57, 57, 3)} == {(table["num_tenants"], table["num_matching"], table["num_pages"]) for table in pages}
    last = gateway.table(page=99)
    assert (2, 7) == (last["page"], len(last["rows"])), "beyond the last page is the last page"
    assert ["tenant-050"] == gateway.names(text="T-050")
    none = gateway.table(text="nobody", page=3)
    assert (0, 57, 0, 1, []) == tuple(none[name] for name in ("num_matching", "num_tenants", "page", "num_pages", "rows"))


@pytest.mark.parametrize("sort", SORTS)
def test_the_order_is_by_what_was_asked_for_and_the_unknown_is_last(still: Make, sort: str) -> None:
    gateway = still(
        *(
            Tenant(f"tenant-{number}", weight=number + 1, budget=Budget(tokens_per_day=1000) if number else Budget())
            for number in range(5)
        )
    )
    gateway.go(10)
    for number in range(1, 5):
        for _ in range(number):
            gateway.end(gateway.begin(f"tenant-{number}", 100 * number, 100, 20 * number * number))
            gateway.refuse(f"tenant-{number}", "requests")
    column = {"service": "service_share", "cache_hit": "cache_hit_ratio", "traffic": "output_tokens_per_s"}.get(sort, sort)
    for descending in (True, False):
        rows = gateway.table(sort=sort, descending=descending)["rows"]
        assert 5 == len(rows)
        values = [row[column] for row in rows]
        known = [value for value in values if value is not None]
        assert sorted(known, reverse=descending) == known
        assert [None] * (5 - len(known)) == values[len(known) :]


def test_tenants_that_are_counted_together_have_no_counts_of_their_own(still: Make) -> None:
    gateway = still(ACME, BETA, Tenant("gamma"), metrics={"max_tenants": 1})
    gateway.end(gateway.begin("acme", 10, 10))
    assert (1, 0) == (gateway.row("acme")["requests"], gateway.row("beta")["requests"])
    gateway.end(gateway.begin("beta", 10, 10))
    assert (1, None, None) == tuple(gateway.row(name)["requests"] for name in ("acme", "beta", "gamma"))
    assert "acme" == gateway.names(sort="requests", descending=False)[0]


def test_a_tenant_of_the_settings_is_in_the_table_once_it_asks(still: Make) -> None:
    gateway = still(ACME, tenancy={"key": "a-key-of-the-settings"})
    assert ["acme"] == gateway.names()
    gateway.end(gateway.begin("default", 10, 10))
    assert {"acme", "default"} == set(gateway.names())


def test_a_suspended_tenant_is_shown_as_one(still: Make) -> None:
    assert [True, False] == [
        row["suspended"] for row in still(BETA, Tenant("alpha", suspended=True)).table(sort="name", descending=False)["rows"]
    ]
