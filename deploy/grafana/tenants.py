"""The tenants' page: who gets how much, against what is theirs, and how well."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from deploy.grafana.figures import FAILED, SPEED
from deploy.grafana.page import Panel, page
from deploy.grafana.panels import TOKENS_PER_S, Column, Limits, Line, bars, graph, sheet
from deploy.grafana.queries import gauge, mean, quantile, rate, ratio, recorded, top

TENANT = ["tenant"]
NAME = "{{tenant}}"
TOKENS_OUT = rate("tokens_total", TENANT, kind="output")
TOKENS_IN = rate("tokens_total", TENANT, kind="input")
HIT_RATE = ratio(rate("tokens_total", TENANT, kind="cached_input"), TOKENS_IN)
ACCEPTANCE = ratio(rate("spec_accepted_tokens_total", TENANT), rate("spec_draft_tokens_total", TENANT))
BUDGET_LEFT = gauge("min", "budget_remaining_ratio", TENANT)
TTFT = quantile(0.95, "ttft_seconds", TENANT)
SERVICE_SHARE = recorded("tenant:k3gw_service_share:ratio_rate5m")
WEIGHT_SHARE = recorded("tenant:k3gw_weight_share:ratio")
FAILING = ratio(rate("requests_total", TENANT, outcome=FAILED), rate("requests_total", TENANT))
BUDGET_LIMITS = Limits(0.2, 0.05)
HIT_LIMITS = Limits(0.3, 0.05)
TTFT_LIMITS = Limits(5, 10)
SPEED_LIMITS = Limits(50, 20)


def _glance() -> list[Panel]:
    return [
        sheet(
            "Tenants",
            "As it is now. Shares: of all service of the last five minutes; by weight, among those served then or waiting.",
            "tenant",
            Column("Out", TOKENS_PER_S, TOKENS_OUT),
            Column("In", TOKENS_PER_S, TOKENS_IN),
            Column("Requests", "reqps", rate("requests_total", TENANT)),
            Column("Under way", "short", gauge("sum", "inflight_requests", TENANT)),
            Column("Share of service", "percentunit", SERVICE_SHARE),
            Column("Share by weight", "percentunit", WEIGHT_SHARE),
            Column("Weight", "short", gauge("max", "tenant_weight", TENANT)),
            Column("Budget left", "percentunit", BUDGET_LEFT, BUDGET_LIMITS),
            Column("Cache hits", "percentunit", HIT_RATE, HIT_LIMITS),
            Column("First token, p95", "s", TTFT, TTFT_LIMITS),
            Column("Decode speed", TOKENS_PER_S, mean(SPEED, TENANT), SPEED_LIMITS),
        )
    ]


def _traffic() -> list[Panel]:
    uncached = f"{TOKENS_IN} - {rate('tokens_total', TENANT, kind='cached_input')}"
    return [
        graph(
            "Tokens out",
            "Generated tokens in a second, of answers that ended.",
            TOKENS_PER_S,
            Line(top(TOKENS_OUT), NAME),
            stacked=True,
        ),
        graph(
            "Tokens in",
            "Prompt tokens in a second, cached ones included.",
            TOKENS_PER_S,
            Line(top(TOKENS_IN), NAME),
            stacked=True,
        ),
        graph(
            "Tokens in, computed",
            "Prompt tokens in a second that the prefix cache did not have: what prefill costs.",
            TOKENS_PER_S,
            Line(top(uncached), NAME),
            stacked=True,
        ),
        graph(
            "Requests",
            "Requests in a second, however they ended.",
            "reqps",
            Line(top(rate("requests_total", TENANT)), NAME),
            stacked=True,
        ),
        graph(
            "Under way",
            "Generations that have begun and not ended.",
            "short",
            Line(top(gauge("sum", "inflight_requests", TENANT)), NAME),
            stacked=True,
        ),
        graph(
            "Endings",
            "Requests in a second by how they ended, of the tenants that are chosen.",
            "reqps",
            Line(rate("requests_total", ["outcome"]), "{{outcome}}"),
            stacked=True,
        ),
    ]


def _fairness() -> list[Panel]:
    return [
        graph(
            "Share of service",
            "Of all service of the last five minutes, in uncached input tokens' worth, what each tenant got.",
            "percentunit",
            Line(top(SERVICE_SHARE), NAME),
            stacked=True,
            most=1,
        ),
        graph(
            "Share by weight",
            "What each tenant would get by its weight, among those that were served or wait.",
            "percentunit",
            Line(top(WEIGHT_SHARE), NAME),
            stacked=True,
            most=1,
        ),
        graph(
            "Service against weight",
            "1: just its share. More is fine while others want less; less than 1 is unfair only where the tenant waits.",
            "short",
            Line(top(f"{SERVICE_SHARE} / on (tenant) {WEIGHT_SHARE}"), NAME),
        ),
        graph(
            "Service",
            "In uncached input tokens' worth per second.",
            TOKENS_PER_S,
            Line(top(rate("fair_service_tokens_total", TENANT)), NAME),
        ),
        graph(
            "Waiting",
            "Choices of requests that wait for a seat.",
            "short",
            Line(top(gauge("sum", "queued_requests", TENANT)), NAME),
            stacked=True,
            limits=Limits(20, 200),
        ),
        graph(
            "Wait for a seat, p95",
            "19 of 20 waited less.",
            "s",
            Line(top(quantile(0.95, "queue_seconds", TENANT)), NAME),
            limits=Limits(5, 60),
        ),
    ]


def _limits() -> list[Panel]:
    return [
        graph(
            "Limits hit",
            "Requests in a second that were refused for want of room, by what had none.",
            "reqps",
            Line(top(rate("rejected_total", ["tenant", "reason"])), "{{tenant}}: {{reason}}"),
            limits=Limits(1),
        ),
        bars(
            "Budget left",
            "Of the tightest budget of each tenant that has one. All replicas of one store tell the same; else the least.",
            "percentunit",
            Line(f"bottomk($top, {BUDGET_LEFT})", NAME),
            limits=BUDGET_LIMITS,
            most=1,
        ),
        graph(
            "Budget left, over time",
            "It is whole again when the day or the month begins, in UTC.",
            "percentunit",
            Line(f"bottomk($top, {BUDGET_LEFT})", NAME),
            limits=BUDGET_LIMITS,
            most=1,
        ),
    ]


def _quality() -> list[Panel]:
    bad_calls = rate("tool_calls_total", TENANT, outcome="~invalid|undeclared|refused")
    return [
        graph(
            "Cache hits",
            "Of the tenant's prompt tokens, the share that the prefix cache had.",
            "percentunit",
            Line(top(HIT_RATE), NAME),
            limits=HIT_LIMITS,
            most=1,
        ),
        graph(
            "First token, p95",
            "From arrival to the first token; 19 of 20 are faster.",
            "s",
            Line(top(TTFT), NAME),
            limits=TTFT_LIMITS,
        ),
        graph(
            "Decode speed of one answer",
            "Tokens per second after the first token, on average over answers.",
            TOKENS_PER_S,
            Line(top(mean(SPEED, TENANT)), NAME),
            limits=SPEED_LIMITS,
        ),
        graph(
            "Time between tokens, p95",
            "The gap before a token; 19 of 20 are shorter.",
            "s",
            Line(top(quantile(0.95, "inter_token_seconds", TENANT)), NAME),
            limits=Limits(0.1, 0.5),
        ),
        graph(
            "Whole requests, p95",
            "From arrival to the last byte; 19 of 20 are faster.",
            "s",
            Line(top(quantile(0.95, "request_seconds", TENANT)), NAME),
            limits=Limits(bad=900),
        ),
        graph(
            "Drafts accepted",
            "Of the tokens that were drafted for the tenant's answers, the share that was accepted.",
            "percentunit",
            Line(top(ACCEPTANCE), NAME),
            limits=Limits(0.2, 0.05),
            most=1,
        ),
        graph(
            "Requests that fail",
            "Share of the tenant's requests that ended in a fault of ours.",
            "percentunit",
            Line(top(FAILING), NAME),
            limits=Limits(0.01, 0.05),
        ),
        graph(
            "Tool calls that do not fit",
            "Of the tenant's tool calls, the share that did not fit its schema, or named no tool of the request.",
            "percentunit",
            Line(top(ratio(bad_calls, rate("tool_calls_total", TENANT))), NAME),
            limits=Limits(0.01, 0.05),
        ),
    ]


def tenants() -> dashboard.Dashboard:
    """The page."""
    rows = [
        ("At a glance", _glance()),
        ("Traffic", _traffic()),
        ("Fairness", _fairness()),
        ("Limits and budgets", _limits()),
        ("What they get", _quality()),
    ]
    meaning = "What each tenant asks for, what it gets against its weight, where it meets its limits, how well it is served."
    return page("k3gw-tenants", "k3-gateway: tenants", meaning, rows, tops=(20, 10, 50, 1000), with_nobody=False)
