"""Rows of the operator's page: what goes in and out, and how fast."""

from __future__ import annotations

from deploy.grafana.figures import (
    BY_POSITION,
    HIT_RATE,
    OBJECTIVE,
    SPEED,
    TOKENS_OUT,
    TOKENS_PER_STEP,
    TOKENS_PER_STEP_BY,
    percentiles,
)
from deploy.grafana.page import Panel
from deploy.grafana.panels import TOKENS_PER_S, Limits, Line, bars, graph
from deploy.grafana.queries import gauge, mean, quantile, rate, ratio, recorded


def traffic() -> list[Panel]:
    """What goes in and out."""
    read, cached = rate("tokens_total", kind="input"), rate("tokens_total", kind="cached_input")
    return [
        graph(
            "Tokens per second",
            "Tokens of requests that ended, cancelled ones included: of prompts, computed and found in the cache; and generated.",
            TOKENS_PER_S,
            Line(f"{read} - {cached}", "in, computed"),
            Line(cached, "in, from the cache"),
            Line(TOKENS_OUT, "out"),
            Line(rate("tokens_total", kind="reasoning"), "of these reasoning"),
            Line(rate("tokens_total", kind="discarded"), "discarded: calls sampled again"),
        ),
        graph(
            "Requests per second, by how they ended",
            "`cancelled`: the client left. `limited`, `over_budget`: the tenant's limits. `error`, `timeout`, `rejected`: ours.",
            "reqps",
            Line(rate("requests_total", ["outcome"]), "{{outcome}}"),
            stacked=True,
        ),
        graph(
            "Requests under way",
            "Generations that have begun and not ended.",
            "short",
            Line(gauge("sum", "inflight_requests", ["model"]), "{{model}}"),
            stacked=True,
        ),
    ]


def speed() -> list[Panel]:
    """How fast it is for one user."""
    burn = [(recorded(f"model:k3gw_ttft_late:ratio_rate{window}"), window) for window in ("5m", "1h", "6h")]
    return [
        graph(
            "Decode speed of one answer",
            "Tokens per second after the first: the mean over answers, the median, and what one answer in ten falls short of.",
            TOKENS_PER_S,
            Line(mean(SPEED), "mean"),
            Line(quantile(0.5, SPEED), "p50"),
            Line(quantile(0.1, SPEED), "p10, the slow ones"),
            limits=Limits(50, 20),
        ),
        graph(
            "Time to first token",
            "From arrival: queue, prompt, prefill.",
            "s",
            *percentiles("ttft_seconds", 0.5, 0.95, 0.99),
            limits=Limits(bad=10),
        ),
        graph(
            "First token too late: how fast the budget burns",
            "The share of first tokens after 10 s, by the 1 % that may. At 1 the budget lasts; alerts: 14.4 (1 h), 6 (6 h).",
            "short",
            *[Line(f"{query} / {OBJECTIVE}", f"{{{{model}}}}, {window}") for query, window in burn],
            limits=Limits(1, 6),
        ),
        graph(
            "Time between tokens",
            "The gap before a token, of all tokens. Tokens that come together share theirs.",
            "s",
            *percentiles("inter_token_seconds", 0.5, 0.95, 0.99),
            limits=Limits(0.1, 0.5),
        ),
        graph(
            "Whole requests",
            "From arrival to the last byte.",
            "s",
            *percentiles("request_seconds", 0.5, 0.95, 0.99),
            limits=Limits(bad=900),
        ),
        graph(
            "What the gateway adds",
            "A request's time without its waits for the queue, the engine and the client.",
            "s",
            *percentiles("overhead_seconds", 0.5, 0.95, 0.99),
            limits=Limits(0.05, 0.25),
        ),
    ]


def cache() -> list[Panel]:
    """What needs no prefill, and what speculation adds."""
    hit, queried = "engine_prefix_cache_hit_tokens_total", "engine_prefix_cache_queried_tokens_total"
    return [
        graph(
            "Prefix-cache hit rate",
            "Of the prompt tokens that were looked up, the share that was found; by replica and of all.",
            "percentunit",
            Line(ratio(rate(hit, ["instance"]), rate(queried, ["instance"])), "{{instance}}"),
            Line(HIT_RATE, "all"),
            limits=Limits(0.3, 0.05),
            most=1,
        ),
        graph(
            "Prefix cache, tokens per second",
            "Looked up, and found.",
            TOKENS_PER_S,
            Line(rate(queried), "looked up"),
            Line(rate(hit), "found"),
        ),
        graph(
            "Tokens per step, by replica",
            "1, and the drafted tokens that were accepted, of each step that drafted.",
            "short",
            Line(TOKENS_PER_STEP_BY, "{{instance}}"),
            Line(TOKENS_PER_STEP, "all"),
            limits=Limits(2, 1.2),
        ),
        bars(
            "Acceptance by position",
            "How often the drafted token at this place was accepted; the first is 0. It falls from place to place.",
            "percentunit",
            Line(BY_POSITION, "position {{position}}"),
            limits=Limits(0.3, 0.1),
            most=1,
        ),
        graph(
            "Acceptance by position, over time",
            "The same, as it was.",
            "percentunit",
            Line(BY_POSITION, "position {{position}}"),
            limits=Limits(0.3, 0.1),
            most=1,
        ),
        graph(
            "Drafted tokens per second",
            "Drafted, and accepted.",
            TOKENS_PER_S,
            Line(rate("engine_spec_draft_tokens_total"), "drafted"),
            Line(rate("engine_spec_accepted_tokens_total"), "accepted"),
        ),
    ]
