"""The engine's figures of real vLLM in Prometheus: there is something of all of them, and they are what vLLM counts itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.deploy.expressions import Expression, of_dashboards
from tests.services.prometheus import Prometheus, prometheus
from tests.wire.real_tenants import STREAM, RealTenants

pytestmark = pytest.mark.vllm

PANELS = {str(expression): expression for expression in of_dashboards()}
SAME = {
    "sum(k3gw_engine_prefix_cache_queried_tokens_total)": "sum(vllm:prefix_cache_queries_total)",
    "sum(k3gw_engine_prefix_cache_hit_tokens_total)": "sum(vllm:prefix_cache_hits_total)",
    "sum(k3gw_engine_spec_drafts_total)": "sum(vllm:spec_decode_num_drafts_total)",
    "sum(k3gw_engine_spec_draft_tokens_total)": "sum(vllm:spec_decode_num_draft_tokens_total)",
    "sum(k3gw_engine_spec_accepted_tokens_total)": "sum(vllm:spec_decode_num_accepted_tokens_total)",
    "sum(k3gw_engine_preemptions_total)": "sum(vllm:num_preemptions_total)",
    "sum(k3gw_engine_running_requests)": "sum(vllm:num_requests_running)",
    "sum(k3gw_engine_waiting_requests)": "sum(vllm:num_requests_waiting)",
    "max(k3gw_engine_kv_cache_usage_ratio)": "max(vllm:kv_cache_usage_perc)",
}
"""Of our expressions, vLLM's own for the same."""

MAY_BE_ZERO = ("preemptions", "running", "waiting", "usage")
ENGINES = [panel for panel in PANELS.values() if panel.metrics and all(name.startswith("engine_") for name in panel.metrics)]
REPEATS = "Repeat this word: apple apple apple apple apple apple apple apple apple apple apple apple apple apple apple apple"


@pytest.fixture(scope="module")
def watching(vllm_gateway: Any, vllm_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Two tenants have asked the same things, before and after the first scrapes; the engine is at rest."""
    folder, netloc = tmp_path_factory.mktemp("prometheus"), urlsplit(vllm_gateway.url).netloc
    with httpx.Client(timeout=60) as http, prometheus(folder, [netloc]) as server:
        tenants = RealTenants(vllm_gateway, vllm_folder, http)
        for _ in range(2):
            for name in ("ann", "bea"):
                target = tenants.named(name)
                for fields in ({}, STREAM):
                    body = target.body(REPEATS, max_tokens=48, ignore_eos=True, **fields)
                    answer = tenants.http.post(f"{target.base_url}/chat/completions", json=body, headers=target.headers)
                    assert 200 == answer.status_code, answer.text
            tenants.counts()
            server.wait_scraped()
        yield server


def test_the_engines_figures_are_vllms_own_and_every_panel_of_them_has_data(watching: Prometheus) -> None:
    for ours, vllms in SAME.items():
        assert watching.value(vllms) == watching.value(ours), ours
        assert watching.value(ours) > 0 or any(name in ours for name in MAY_BE_ZERO), ours
    position = watching.by("position", "sum by (position) (k3gw_engine_spec_accepted_tokens_total)")
    assert watching.by("position", "sum by (position) (vllm:spec_decode_num_accepted_tokens_per_pos_total)") == position
    assert [] == [panel.where for panel in ENGINES if not has_data(watching, panel)]


def test_hits_and_acceptance_are_shown_as_they_were(watching: Prometheus) -> None:
    def value(panel: str, **variables: str) -> Any:
        return watching.value(PANELS[panel].filled(**variables))

    assert 0 < value("operation: Prefix cache hits A") < 1
    drafted = watching.value("sum(rate(vllm:spec_decode_num_drafts_total[5m]))")
    accepted = watching.value("sum(rate(vllm:spec_decode_num_accepted_tokens_total[5m]))")
    assert pytest.approx(1 + accepted / drafted, rel=0.03) == value("operation: Tokens per step A")
    assert 1 < value("operation: Tokens per step A")
    for tenant in ("ann", "bea"):
        assert 0 < value("tenants: Cache hits A", tenant=tenant) < 1
        assert 0 < value("tenants: Drafts accepted A", tenant=tenant) <= 1
        assert 0 < value("tenants: Decode speed of one answer A", tenant=tenant)
    assert 0 < value("operation: Time between tokens A")
    assert 0 < value("operation: What the gateway adds A")


def has_data(server: Prometheus, panel: Expression) -> bool:
    return bool(server.course(panel.filled()))
