"""The meters, held against a known speed: Kimi K3 at 118 steps a second, without speculation and with 3.14 tokens a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.deploy.expressions import of_dashboards
from tests.services.prometheus import Prometheus, prometheus
from tests.wire.customers import END, House, open_house, wait_for

PANELS = {str(expression): expression for expression in of_dashboards()}
STEPS_PER_S, STREAM_S, NUM_STREAMS = 118, 4, 3
DRAFTS = [3, 3, 3, 3, 3, 3, 4]
"""Tokens a step; 22 of seven."""

TOKENS_PER_STEP = {"alone": 1, "drafted": sum(DRAFTS) / len(DRAFTS)}
RULES: dict[str, Any] = {
    "alone": {"tokens_per_step": 1, "spec": {"draft": 7, "accepted": 0}},
    "drafted": {"tokens_per_step": DRAFTS, "spec": {"draft": 7}},
}


def _script(tenant: str) -> list[Any]:
    num_tokens = round(STEPS_PER_S * STREAM_S * TOKENS_PER_STEP[tenant])
    reply = [{"repeat": {"times": num_tokens, "of": [{"text": "a"}]}}, *END]
    short = [{"repeat": {"times": 50, "of": [{"text": "a"}]}}, *END]
    pace = {"step_interval_ms": 1000 / STEPS_PER_S, **RULES[tenant]}
    return [{"when": {"contains": "warm up"}, "reply": short, **pace}, {"reply": reply, **pace}]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, dict[str, str], str]]:
    """Prometheus, each tenant's replica, and the time since the streams began, as a range."""
    with ExitStack() as stack:
        houses: dict[str, House] = {tenant: stack.enter_context(open_house(_script(tenant))) for tenant in TOKENS_PER_STEP}
        instances = {tenant: urlsplit(house.url).netloc for tenant, house in houses.items()}
        folder = tmp_path_factory.mktemp("speeds")
        watching = stack.enter_context(prometheus(folder, list(instances.values())))
        customers = {tenant: house.tenant(tenant) for tenant, house in houses.items()}
        for customer in customers.values():  # a rate sees nothing of a series' first value
            assert (200, None) == customer.chat("warm up").outcome
        from_s = time.time()
        watching.wait_scraped()
        with ThreadPoolExecutor(len(houses) * NUM_STREAMS) as threads:
            streams = [threads.submit(customer.chat, stream=True) for customer in customers.values() for _ in range(NUM_STREAMS)]
            assert {(200, None)} == {stream.result().outcome for stream in streams}
        for tenant, house in houses.items():
            wait_for(lambda: house.rows(customers[tenant], 1 + NUM_STREAMS))  # noqa: B023  # called at once
        watching.wait_scraped()
        yield watching, instances, f"{round((time.time() - from_s) * 1000)}ms"


@pytest.mark.parametrize("tenant", TOKENS_PER_STEP)
def test_one_users_decode_speed_is_the_scripts(measured: Any, tenant: str) -> None:
    watching, instances, since = measured
    expected = STEPS_PER_S * TOKENS_PER_STEP[tenant]
    for name in ("operation: Decode speed of one user A", "operation: Decode speed of one answer A"):
        query = PANELS[name].filled(__rate_interval=since, instance=instances[tenant])
        assert expected == pytest.approx(watching.value(query), rel=0.03)
    by_tenant = watching.by(
        "tenant", PANELS["tenants: Decode speed of one answer A"].filled(__rate_interval=since, tenant=tenant)
    )
    assert {tenant: pytest.approx(expected, rel=0.03)} == by_tenant


@pytest.mark.parametrize("tenant", TOKENS_PER_STEP)
def test_tokens_per_step_are_the_scripts(measured: Any, tenant: str) -> None:
    watching, instances, since = measured
    query = PANELS["operation: Tokens per step A"].filled(__rate_interval=since, instance=instances[tenant])
    assert TOKENS_PER_STEP[tenant] == pytest.approx(watching.value(query), rel=0.03)
    by_instance = watching.by("instance", PANELS["operation: Tokens per step, by replica A"].filled(__rate_interval=since))
    assert TOKENS_PER_STEP[tenant] == pytest.approx(by_instance[instances[tenant]], rel=0.03)


@pytest.mark.parametrize("tenant", TOKENS_PER_STEP)
def test_the_gap_before_a_token_is_the_scripts(measured: Any, tenant: str) -> None:
    watching, instances, since = measured
    selector = f'{{instance="{instances[tenant]}"}}[{since}]'
    mean_s = f"sum(rate(k3gw_inter_token_seconds_sum{selector})) / sum(rate(k3gw_inter_token_seconds_count{selector}))"
    assert 1 / (STEPS_PER_S * TOKENS_PER_STEP[tenant]) == pytest.approx(watching.value(mean_s), rel=0.03)
