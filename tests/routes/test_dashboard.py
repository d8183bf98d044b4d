"""`/dashboard`: its files, and its figures beside those of `/metrics` and the admin API."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.dashboard.points import COLUMNS
from tests.conftest import ADMIN_KEY, LiveGateway, StartGateway
from tests.routes.admin_gateway import AdminGateway

REPLY = {"reply": [{"text": "Hello there."}, "stop"], "spec": {"draft": 4, "accepted": 2}}


def ask(gateway: LiveGateway, key: str, content: str = "hi") -> httpx.Response:
    body = {"model": "kimi-k3", "messages": [{"role": "user", "content": content}]}
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})


def figures(gateway: LiveGateway, **query: Any) -> dict[str, Any]:
    response = httpx.get(f"{gateway.url}/dashboard/figures", params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


@pytest.fixture
def gateway(start_gateway: StartGateway) -> LiveGateway:
    return start_gateway([REPLY])


def test_every_file_says_that_nothing_else_may_be_asked_or_run(gateway: LiveGateway) -> None:
    page = httpx.get(f"{gateway.url}/dashboard")
    links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {"dashboard/page.css", "dashboard/theme.js", "dashboard/page.js", "dashboard/icon.svg"} == set(links)
    for path in ("/dashboard", "/dashboard/figures", *(f"/{link}" for link in links), "/dashboard/plot.js"):
        response = httpx.get(gateway.url + path)
        assert response.status_code == 200, path
        policy = response.headers["content-security-policy"]
        assert "default-src 'self';" in policy
        assert not re.search(r"unsafe|http:|https:|\*|data:", policy)
        assert "nosniff" == response.headers["x-content-type-options"]
        assert "set-cookie" not in response.headers
    assert "style=" not in page.text
    assert not re.search(r"<script(?![^>]*src=)|\son[a-z]+=", page.text)


def test_a_slash_behind_the_address_leads_to_the_page(gateway: LiveGateway) -> None:
    answer = httpx.get(f"{gateway.url}/dashboard/")

    assert (308, "../dashboard") == (answer.status_code, answer.headers["location"])
    assert f"{gateway.url}/dashboard" == str(httpx.get(f"{gateway.url}/dashboard/", follow_redirects=True).url)


def test_a_file_that_a_browser_has_is_not_sent_again(gateway: LiveGateway) -> None:
    first = httpx.get(f"{gateway.url}/dashboard/page.js")
    again = httpx.get(f"{gateway.url}/dashboard/page.js", headers={"if-none-match": first.headers["etag"]})
    other = httpx.get(f"{gateway.url}/dashboard/page.js", headers={"if-none-match": '"another"'})

    assert (304, b"", 200) == (again.status_code, again.content, other.status_code)
    assert ("no-cache", "no-store") == (
        first.headers["cache-control"],
        httpx.get(f"{gateway.url}/dashboard/figures").headers["cache-control"],
    )


@pytest.mark.parametrize("name", ["page.html", "nothing.js", "..%2Fdashboard.py", "%2e%2e%2fpage.css", "page.css/x"])
def test_what_is_no_file_of_the_page_is_not_found(gateway: LiveGateway, name: str) -> None:
    assert httpx.get(f"{gateway.url}/dashboard/{name}").status_code == 404


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"sort": "size"}, "sort"),
        ({"order": "up"}, "order"),
        ({"page": "-1"}, "page"),
        ({"since": "1e3"}, "since"),
        ({"rows": "٣"}, "rows"),
        ({"since": "9" * 400}, "since"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_what_is_wrong_with_a_query_is_said(one_admin: AdminGateway, query: dict[str, str], param: str) -> None:
    status, message, found = await one_admin.error("GET", "/dashboard/figures", params=query)

    assert (400, param) == (status, found)
    assert "`" in message


async def test_only_new_points_are_sent_to_a_page_that_has_the_others(one_admin: AdminGateway) -> None:
    history = one_admin.dashboard.history
    for _ in range(3):
        history.sample()
    first = await one_admin.ok("GET", "/dashboard/figures")
    assert 3 == len(first["points"])
    assert {len(COLUMNS)} == {len(point) for point in first["points"]}
    known = {"epoch": first["epoch"], "since": first["next"]}
    assert [] == (await one_admin.ok("GET", "/dashboard/figures", params=known))["points"]
    history.sample()
    assert 1 == len((await one_admin.ok("GET", "/dashboard/figures", params=known))["points"])
    other = {"epoch": "of-another-process", "since": first["next"]}
    assert 4 == len((await one_admin.ok("GET", "/dashboard/figures", params=other))["points"])


async def test_the_replica_is_described_as_the_admin_api_does(one_admin: AdminGateway) -> None:
    assert (await one_admin.ok("GET", "/dashboard/figures"))["replica"] == await one_admin.ok("GET", "/admin/v1/status")


def test_the_figures_are_those_of_metrics_and_of_the_ledger(gateway: LiveGateway) -> None:
    tenants = {"acme": {"limits": {"requests_per_minute": 3}}, "beta": {}}
    assert httpx.put(f"{gateway.url}/admin/v1/tenants", json=tenants, headers=gateway.admin).is_success
    keys = {name: gateway.key_of(name) for name in tenants}
    statuses = [ask(gateway, keys[name], "hi " * 200).status_code for name in ("acme", "acme", "beta", "acme", "acme", "beta")]
    assert [200, 200, 200, 200, 429, 200] == statuses
    gateway.ledger(6)

    rows = {row["name"]: row for row in figures(gateway)["tenants"]["rows"]}
    usage = httpx.get(f"{gateway.url}/admin/v1/usage", headers=gateway.admin).json()["data"]
    assert 2 == len(usage)
    for line in usage:
        row = rows[line["tenant"]]
        names = ("requests", "input_tokens", "cached_tokens", "output_tokens")
        assert {name: line[name] for name in names} == {name: row[name] for name in names}
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(httpx.get(f"{gateway.url}/metrics").text):
        for sample in family.samples:
            if sample.labels.get("tenant") == "acme" and sample.name in ("k3gw_requests_total", "k3gw_rejected_total"):
                samples[sample.name] = samples.get(sample.name, 0) + sample.value
    assert {"k3gw_requests_total": rows["acme"]["requests"], "k3gw_rejected_total": rows["acme"]["refused"]} == samples
    assert [3, 3] == rows["acme"]["requests_per_minute"]


def test_polling_is_no_request_of_anybody(gateway: LiveGateway) -> None:
    def num_requests() -> float:
        families = text_string_to_metric_families(httpx.get(f"{gateway.url}/metrics").text)
        return sum(sample.value for family in families if family.name == "k3gw_requests" for sample in family.samples)

    before = num_requests()
    for _ in range(3):
        figures(gateway)
    assert before == num_requests()


def test_no_key_is_in_what_the_page_is_given(gateway: LiveGateway) -> None:
    assert httpx.put(f"{gateway.url}/admin/v1/tenants", json={"acme": {}}, headers=gateway.admin).is_success
    key = gateway.key_of("acme")
    ask(gateway, key, "a secret question")
    text = httpx.get(f"{gateway.url}/dashboard/figures", headers=gateway.admin).text

    assert not [secret for secret in (key, ADMIN_KEY, "a secret question", "Hello there.") if secret in text]
