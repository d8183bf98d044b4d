"""The closed sets of labels have every value that the code can give, and tenants no more than are allowed."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server import errors
from server.admission.limits import KINDS
from server.metrics import catalog
from server.metrics.catalog import Limits
from server.metrics.collectors import AdmissionFigures
from server.metrics.names import TenantNames
from server.metrics.recorder import Recorder
from server.parsers.recovery import Recovery
from server.record import GenerationRecord
from tests.conftest import StartGateway
from tests.metrics.test_recorder import Scrape

SERVER = Path(__file__).resolve().parents[2] / "server"


def classes(base: type[errors.GatewayError]) -> list[type[errors.GatewayError]]:
    return [base, *(found for child in base.__subclasses__() for found in classes(child))]


def test_anomalies_are_those_of_the_parsers() -> None:
    assert [kind.value for kind in Recovery] == list(catalog.RECOVERY.values)


def test_outcomes_are_those_of_errors_and_two_that_are_none() -> None:
    assert {"finished", "cancelled", *(kind.outcome for kind in classes(errors.GatewayError))} == set(catalog.OUTCOME.values)


def test_reasons_are_those_that_errors_are_made_with() -> None:
    """Literals of the source, and the errors' own."""
    literals = {
        reason
        for path in SERVER.rglob("*.py")
        for reason in re.findall(r'\breason(?:: str)? ?= ?"(\w+)"', path.read_text(encoding="utf-8"))
    }
    own = {str(kind("x").reason) for kind in classes(errors.OverloadedError)}
    budgets = {f"{unit}_per_{window}" for unit in ("tokens", "usd") for window in ("day", "month")}
    assert {"queue_full", "held_bytes", "image_queue_full", "concurrent_requests", "requests", "budget"} <= literals
    assert literals | own | budgets | set(KINDS) == set(catalog.REASON.values)


@given(st.lists(st.text(max_size=3), max_size=60), st.integers(0, 8))
def test_no_more_tenants_than_allowed_have_a_name_and_none_loses_it(tenants: list[str], most: int) -> None:
    names = TenantNames(most)
    given_out: dict[str, str] = {}
    for tenant in tenants:
        label = names.label(tenant)
        assert label in (tenant, catalog.OTHER)
        assert given_out.setdefault(tenant, label) == label == names.shown(tenant)
    own = set(given_out.values()) - {"", catalog.OTHER}
    assert min(most, len(set(tenants) - {"", catalog.OTHER})) == len(own)


@given(st.lists(st.sampled_from("abcdefgh")), st.lists(st.sampled_from("abcdefgh"), unique=True), st.integers(0, 8))
def test_tenants_of_the_store_have_names_where_all_fit(active: list[str], stored: list[str], most: int) -> None:
    names = TenantNames(most)
    for tenant in active:
        names.label(tenant)
    before = {tenant: names.shown(tenant) for tenant in active}
    fit = len({*before, *stored}) <= most
    names.adopt(stored)
    assert before == {tenant: names.shown(tenant) for tenant in active}
    if fit:
        assert stored == [names.shown(tenant) for tenant in stored]
    assert most >= len({names.shown(tenant) for tenant in "abcdefgh"} - {catalog.OTHER})


def test_those_beyond_the_cap_share_one_series(recorder_of_two: Recorder) -> None:
    recorder = recorder_of_two
    for tenant in ("a", "b", "c", "d", "c"):
        record = GenerationRecord("r", tenant, "kimi-k3", arrived_s=0.0, num_input_tokens=10, ended_s=1.0)
        recorder.started(record)
        recorder.ended(record)
    everyone = ("a", "b", "c", "d", "e")
    recorder.watch_admission(
        lambda: AdmissionFigures(
            queued=dict.fromkeys(everyone, 2),
            service=dict.fromkeys(everyone, 1.5),
            weights=dict.fromkeys(everyone, 1.0),
            budget_left=[(tenant, ratio / 10) for ratio, tenant in enumerate(everyone, 3)],
        )
    )
    scrape = Scrape(recorder)

    def told(name: str, **labels: str) -> list[float | None]:
        return [scrape.value(name, {"tenant": tenant, **labels}) for tenant in ("a", "b", "c", "other")]

    who = {"model": "kimi-k3"}
    assert [10, 10, None, 30] == told("tokens_total", kind="input", **who)
    assert [1, 1, None, 3] == told("request_seconds_count", **who)
    assert [0, 0, None, 0] == told("inflight_requests", **who)
    assert [2, 2, None, 6] == told("queued_requests")
    assert [1.5, 1.5, None, 4.5] == told("fair_service_tokens_total")
    assert [1, 1, None, 3] == told("tenant_weight")
    assert [0.3, 0.4, None, 0.5] == told("budget_remaining_ratio"), "the least of the others"


@pytest.fixture
def recorder_of_two() -> Recorder:
    return Recorder(["kimi-k3"], max_tenants=2)


def test_ten_thousand_tenants_and_models_stay_below_the_documented_maximum() -> None:
    """Whatever of the closed sets they meet; names that no setting has, too."""
    recorder = Recorder(["kimi-k3"])
    chance = random.Random(6)
    pick = lambda label: chance.choice([*label.values, "made up"])  # noqa: E731
    for number in range(10_000):
        name = f"tenant-{number}"
        record = GenerationRecord("r", name, chance.choice(["kimi-k3", f"bogus-{number}"]), arrived_s=0.0, api=pick(catalog.API))
        record.outcome, record.rejected_by, record.num_draft_tokens = pick(catalog.OUTCOME), pick(catalog.REASON), 7
        record.queued_s = record.admitted_s = record.first_token_s = record.ended_s = chance.uniform(0, 1000)
        record.choice_speeds, record.token_gaps = [chance.uniform(0, 700)], [1] * 12
        record.tool_calls, record.json_answers = {pick(catalog.CALL): 1}, {pick(catalog.ANSWER): 1}
        record.recoveries = {pick(catalog.RECOVERY): 1}
        recorder.started(record)
        recorder.ended(record)
        recorder.refused(record)
    everyone = {f"tenant-{number}": 1.0 for number in range(10_000)}
    recorder.watch_admission(lambda: AdmissionFigures({}, everyone, everyone, list(everyone.items())))
    text = "".join(recorder.pieces())
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]

    limits = Limits(1000, 1)
    assert recorder.limits == limits
    assert len(series) == len(set(series))
    found = Counter(re.sub(r"_(bucket|sum|count)(?=\{|$)|\{.*", "", one) for one in series)
    assert {catalog.PREFIX + metric.name for metric in catalog.CATALOG} >= found.keys()
    for metric in catalog.CATALOG:
        assert found[catalog.PREFIX + metric.name] <= metric.most_series(limits), metric.name
    assert {"", "kimi-k3"} == set(re.findall(r'model="(.*?)"', text))
    assert 1002 >= len(set(re.findall(r'tenant="(.*?)"', text))) > 1000
    assert 70_000 < len(series) <= catalog.most_series(limits)
    assert not re.search("bogus|made up", text)
    assert len(text) < 10_000_000


def test_over_http_bogus_models_and_many_tenants_are_no_labels(start_gateway: StartGateway) -> None:
    names = [f"tenant-{number}" for number in range(8)]
    gateway = start_gateway(
        [{"reply": [{"text": "x"}, "stop"]}], metrics={"max_tenants": 3}, tenants={name: {"weight": 2} for name in names}
    )
    with httpx.Client(base_url=gateway.url) as client:
        for name in names[3:]:
            headers = {"authorization": f"Bearer {gateway.key_of(name)}"}
            for model in ("kimi-k3", f"bogus-{name}"):
                body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
                answer = client.post("/v1/chat/completions", json=body, headers=headers)
                assert (200 if model == "kimi-k3" else 404) == answer.status_code
        text = client.get("/metrics").text
    assert "bogus" not in text
    assert {"tenant-3", "tenant-4", "tenant-5", "other"} == set(re.findall(r'tenant="([^"]+)"', text))
    finished = 'k3gw_requests_total{api="chat",model="kimi-k3",outcome="finished",tenant="other"} 2.0'
    assert finished in text
    assert 'k3gw_tenant_weight{tenant="other"} 10.0' in text
