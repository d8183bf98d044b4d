"""What the page costs the gateway: what is asked for each tenant is asked for those that are shown."""

from __future__ import annotations

from collections.abc import Callable

import orjson
import pytest

from server.context import Budget, Limits, Tenant
from server.dashboard.tenants import View
from tests.dashboard.tables import Still

NUM_TENANTS = 1000


@pytest.fixture
def busy(still: Callable[..., Still]) -> Still:
    """A thousand tenants that have limits and budgets, and were all active."""
    limits, budget = Limits(requests_per_minute=100, output_tokens_per_minute=10_000), Budget(tokens_per_day=1_000_000)
    gateway = still(*(Tenant(f"tenant-{number:04}", limits=limits, budget=budget) for number in range(NUM_TENANTS)))
    for _ in range(2):
        for number in range(NUM_TENANTS):
            gateway.end(gateway.begin(f"tenant-{number:04}", 100 + number, 50), "finished")
            gateway.refuse(f"tenant-{number:04}", "requests")
        gateway.go(400)
    gateway.go(200)
    return gateway


@pytest.mark.parametrize(("sort", "most"), [("traffic", 100), ("name", 100), ("budget_left", NUM_TENANTS + 100)])
def test_standings_are_asked_for_the_rows_that_are_shown_or_put_in_order(
    busy: Still, monkeypatch: pytest.MonkeyPatch, sort: str, most: int
) -> None:
    store, asked = busy.gateway.admission.store, []
    standing = store.standing
    monkeypatch.setattr(store, "standing", lambda tenant: asked.append(tenant.name) or standing(tenant))
    dashboard, view = busy.dashboard, View(sort=sort)

    assert 450 == len(dashboard.figures("", 0, view)["points"])
    assert 25 <= len(asked) <= most
    assert len(orjson.dumps(dashboard.figures("", 0, view))) < 150_000
    assert [] == dashboard.figures(dashboard.epoch, 10**9, view)["points"], "a page that has them all is sent none again"


def test_what_is_noted_all_the_time_asks_for_no_standing(busy: Still, monkeypatch: pytest.MonkeyPatch) -> None:
    def standing(tenant: Tenant) -> None:
        raise AssertionError("every two seconds, for every tenant")

    monkeypatch.setattr(busy.gateway.admission.store, "standing", standing)
    busy.go(20)
    assert 450 == len(busy.dashboard.figures("", 0, View(text="nobody"))["points"])
